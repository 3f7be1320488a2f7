"""Fork server for Python programs: `python -c ...` runs in a forked child of a process that has already imported modules.

Starting an interpreter and importing pyautogui takes 60 ms, and a second under emulation, for a click of a millisecond. For a
short program the child is like a new interpreter: it has its own session, its own `__main__`, and pipes as standard output and
standard error.

The agent and the fork server share a socket. For each program the agent sends three file descriptors over it: standard output,
standard error, and one end of another socket. On that socket the agent sends the program (its length, then its bytes), and gets
the process id and, at the end, the exit status.
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

__all__ = ["PythonForkServer", "main"]

_NUMBER = struct.Struct("!q")
_DESCRIPTORS = 3
_PROGRAM = "<string>"
"""The file name that Python uses for a program without a file."""


class PythonForkServer:
    """The agent's side: starts the fork server and runs programs in it."""

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
        """Whether the fork server is running."""
        return self._process.poll() is None

    def run(self, code: str, seconds: float) -> tuple[bytes, bytes, int]:
        """Run a program; return its standard output, its standard error and its exit status.

        Raises:
            TimeoutError: it took longer than `seconds` and was killed.
            OSError: the fork server has ended.
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


def _collect(connection: socket.socket, output: int, errors: int, seconds: float) -> tuple[bytes, bytes, int]:
    deadline = time.monotonic() + seconds
    collected: dict[int, bytearray] = {output: bytearray(), errors: bytearray()}
    pid = _receive_number(connection)
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
                collected[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    connection.settimeout(max(deadline - time.monotonic(), 0.1))
    try:
        status = _receive_number(connection)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        raise
    return bytes(collected[output]), bytes(collected[errors]), status


def _receive_number(connection: socket.socket) -> int:
    data = b""
    while len(data) < _NUMBER.size:
        more = connection.recv(_NUMBER.size - len(data))
        if not more:
            raise ConnectionError("the fork server has ended")
        data += more
    return int(_NUMBER.unpack(data)[0])


# --- the fork server -----------------------------------------------------------------------------------------------------


def _next_program(control: socket.socket) -> str:
    """Fork a child for every request; return only in the child, with the program that it has to run."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not control:
                _report(selector, key)
                continue
            message, ancillary, _, _ = control.recvmsg(1, socket.CMSG_SPACE(_DESCRIPTORS * 4))
            if not message:
                os._exit(0)  # the agent has ended
            descriptors = array.array("i", ancillary[0][2])
            pid = os.fork()
            if not pid:
                selector.close()
                control.close()
                return _set_up_child(*descriptors)
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
    with connection, contextlib.suppress(OSError):  # the agent may have stopped waiting
        connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _set_up_child(output: int, errors: int, line: int) -> str:
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
    sys.excepthook = _print_exception
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"], sys.argv = module, ["-c"]
    sys.path.insert(0, "")
    exec(compile(code, _PROGRAM, "exec"), module.__dict__)  # noqa: S102 - its purpose is to run programs


def _print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception like a new interpreter: without the frames of the fork server."""
    import traceback

    own = trace
    while own is not None and own.tb_frame.f_code.co_filename != _PROGRAM:
        own = own.tb_next
    traceback.print_exception(kind, error, own)


def main() -> None:
    """Run programs until the agent ends."""
    import json
    import math
    import re

    imported: Any = [json, math, re]
    with contextlib.suppress(ImportError):
        imported.append(importlib.import_module("pyautogui"))
    program = _next_program(socket.socket(fileno=int(sys.argv[1])))
    del imported
    _run(program)


if __name__ == "__main__":
    main()
