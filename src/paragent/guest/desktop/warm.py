"""Python that is warm: programs given as `python -c ...` run in a forked child of a process that has imported already.

Starting an interpreter and importing pyautogui takes 60 ms, and a second under emulation, for a click of a millisecond. The
child differs from a new interpreter in nothing that a program of a few lines sees: its own session, its own `__main__`,
standard output and error as pipes.

Between the server and the warm process is a socket. For each program the server sends three descriptors over it: standard
output, standard error, and one end of another socket, on which go the program (its length, then its bytes), back its
process id, and at the end its exit status.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["WarmPython", "main"]

_NUMBER = struct.Struct("!q")
_DESCRIPTORS = 3
_PROGRAM = "<string>"
"""What Python calls the file of a program that has none."""


class WarmPython:
    """The server's side."""

    def __init__(self, folder: str) -> None:
        self._lock = threading.Lock()  # protects the sending of descriptors
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                cwd=folder,
            )

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def run(self, code: str, seconds: float) -> tuple[bytes, bytes, int]:
        """Run a program to its end; return its output, its errors and how it ended.

        Raises:
            TimeoutError: it took longer and was killed.
            OSError: the warm process is gone.
        """
        ours, theirs = socket.socketpair()
        pipes = [os.pipe(), os.pipe()]
        with ours:
            with theirs, self._lock:
                descriptors = array.array("i", [pipes[0][1], pipes[1][1], theirs.fileno()])
                self._ours.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            for _, end in pipes:
                os.close(end)
            try:
                data = code.encode()
                ours.sendall(_NUMBER.pack(len(data)) + data)
                return _collect(ours, pipes[0][0], pipes[1][0], seconds)
            finally:
                for end, _ in pipes:
                    os.close(end)


def _collect(line: socket.socket, output: int, errors: int, seconds: float) -> tuple[bytes, bytes, int]:
    deadline = time.monotonic() + seconds
    said: dict[int, bytearray] = {output: bytearray(), errors: bytearray()}
    pid = _receive_number(line)
    with selectors.DefaultSelector() as selector:
        for end in (output, errors):
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                said[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    line.settimeout(max(deadline - time.monotonic(), 0.1))
    try:
        status = _receive_number(line)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        raise
    return bytes(said[output]), bytes(said[errors]), status


def _receive_number(line: socket.socket) -> int:
    data = b""
    while len(data) < _NUMBER.size:
        more = line.recv(_NUMBER.size - len(data))
        if not more:
            raise ConnectionError("the warm Python is gone")
        data += more
    return int(_NUMBER.unpack(data)[0])


# --- the warm process -----------------------------------------------------------------------------------------------------


def _next_program(control: socket.socket) -> str:
    """Fork a child for every request; return, in the child alone, the program that it is to run."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not control:
                _report(selector, key)
                continue
            message, ancillary, _, _ = control.recvmsg(1, socket.CMSG_SPACE(_DESCRIPTORS * 4))
            if not message:
                os._exit(0)  # the server has ended
            descriptors = array.array("i", ancillary[0][2])
            pid = os.fork()
            if not pid:
                selector.close()
                control.close()
                return _become(*descriptors)
            _watch(selector, pid, *descriptors)


def _watch(selector: selectors.BaseSelector, pid: int, output: int, errors: int, line: int) -> None:
    os.close(output)
    os.close(errors)
    connection = socket.socket(fileno=line)
    connection.sendall(_NUMBER.pack(pid))
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _report(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    pid, connection = key.data
    selector.unregister(key.fd)
    os.close(key.fd)
    _, status = os.waitpid(pid, 0)
    with connection, contextlib.suppress(OSError):  # the server may have given up on it
        connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _become(output: int, errors: int, line: int) -> str:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    with socket.socket(fileno=line) as connection, connection.makefile("rb") as reader:
        (length,) = _NUMBER.unpack(reader.read(_NUMBER.size))
        code = reader.read(length)
    os.close(output)
    os.close(errors)
    return code.decode()


def _run(code: str) -> None:
    import random
    import types

    random.seed()
    sys.excepthook = _tell
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"], sys.argv = module, ["-c"]
    sys.path.insert(0, "")
    exec(compile(code, _PROGRAM, "exec"), module.__dict__)  # noqa: S102 - running programs is what it is for


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error as a new interpreter would: from the program on."""
    import traceback

    own = trace
    while own is not None and own.tb_frame.f_code.co_filename != _PROGRAM:
        own = own.tb_next
    traceback.print_exception(kind, error, own)


def main() -> None:
    """Wait for programs until the server ends."""
    import json
    import math
    import re

    warmed: Any = [json, math, re]
    with contextlib.suppress(ImportError):
        warmed.append(importlib.import_module("pyautogui"))
    program = _next_program(socket.socket(fileno=int(sys.argv[1])))
    del warmed
    _run(program)


if __name__ == "__main__":
    main()
