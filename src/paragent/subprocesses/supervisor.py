"""Main program that runs one command and ends all its processes, even those that left its process group.

It runs alone (`python -I -S supervisor.py PARENT COMMAND ...`) and imports only the standard library, so it starts quickly. The
command has the standard input and error output of this process, which closes its own ends: both sides see when the other one
closes a stream. Its output are the messages of an MCP server, one in each line. They pass through this process, which replaces a
message that is too long by an error: the client would read it in a time that grows with the square of its length.
All descendants of the command are killed when the command exits, when this process gets SIGTERM, and when the thread that
started it ends for any reason, such as SIGKILL; Linux only. On other systems the command replaces this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import NoReturn

_SET_PARENT_DEATH_SIGNAL, _SET_DUMPABLE, _SET_CHILD_SUBREAPER = 1, 4, 36  # of <linux/prctl.h>
_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILL_WAIT = 5.0
"""Seconds in which killed processes must disappear. Only a process that hangs in the kernel takes longer."""
_LONGEST_MESSAGE = 8 << 20
"""Bytes of a message: a screenshot of 6 MB in base64."""
_CHUNK = 1 << 16
_FLUSH_WAIT = 2.0
"""Seconds for the last messages to be written after the command has ended."""


class _Ended(BaseException):
    """A signal asks this process to end."""


def _end(*_: object) -> NoReturn:
    """Raise `_Ended`, once: a second one would interrupt the end. If the parent has several threads, the kernel sends its
    signal for each of them that ends."""
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    raise _Ended


def _children() -> list[int]:
    """Return the child processes of this process; orphans of its descendants are among them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - importing pathlib takes as long as all the rest
            with open(f"/proc/self/task/{thread}/children") as listed:  # noqa: PTH123 - as above
                found += map(int, listed.read().split())
    return found


def _kill_descendants() -> None:
    """Kill children until there are none. The children of a killed process become children of this one."""
    deadline = time.monotonic() + _KILL_WAIT
    while time.monotonic() < deadline:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _forward(source: int, target: int) -> None:
    """Copy messages until one side closes its end, and replace those that are too long."""
    line, length = bytearray(), 0
    with contextlib.suppress(OSError):  # the reader is gone
        while chunk := os.read(source, _CHUNK):
            *complete, rest = chunk.split(b"\n")
            for piece in complete:
                line += piece
                length += len(piece)
                _write(target, bytes(line) + b"\n" if length <= _LONGEST_MESSAGE else _error_for(bytes(line), length))
                line, length = bytearray(), 0
            line += rest
            length += len(rest)
            if length > _LONGEST_MESSAGE and len(line) > 2 * _CHUNK:
                del line[_CHUNK:-_CHUNK]  # both ends may have the id of the request
    for descriptor in (source, target):
        os.close(descriptor)


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data[:_CHUNK]) :]


def _error_for(message: bytes, length: int) -> bytes:
    """Return the error response to the request that a message answers; empty if the message does not name one."""
    at_start = message.lstrip().startswith(b'{"jsonrpc"')
    position = message.find(b'"id"') if at_start else message.rfind(b'"id"')
    value = message[position:].partition(b":")[2].replace(b"}", b",").partition(b",")[0].strip()
    if position < 0 or not (value.isdigit() or value.strip(b'"').isalnum()):
        return b""
    problem = f"the message has {length:,} bytes, and at most {_LONGEST_MESSAGE:,} are allowed"
    return b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32603,"message":"%b"}}\n' % (value, problem.encode())


def _start(command: list[str], output: int) -> int:
    """Start the command with its output at a file descriptor, and return its process id."""
    reader, writer = os.pipe()  # closed by a successful exec, so that a failed one can be reported
    pid = os.fork()
    if pid:
        os.close(writer)
        with os.fdopen(reader) as pipe:
            problem = pipe.read()
        if problem:
            sys.exit(problem)
        return pid
    try:
        for number in _ENDINGS:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)  # if this supervisor itself is killed
        os.execvp(command[0], command)  # noqa: S606 - running a command is the purpose of this program
    except BaseException as error:  # noqa: BLE001 - reported to the parent; this process must not return
        os.write(writer, f"{command[0]}: {getattr(error, 'strerror', None) or error}".encode())
    os._exit(127)


def supervise(parent: int, command: list[str]) -> int:
    """Run a command to its end and return its exit status; 128 and the number for a signal."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_DUMPABLE, 0)  # the command cannot open the streams of this process in /proc
    prctl(_SET_CHILD_SUBREAPER, 1)
    for number in _ENDINGS:
        signal.signal(number, _end)
    status = 128 + signal.SIGTERM
    forwarding: threading.Thread | None = None
    try:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            return status  # the parent ended before the call above
        source, output = os.pipe()
        pid = _start(command, output)
        os.close(output)
        forwarding = threading.Thread(target=_forward, args=(source, os.dup(1)), daemon=True)
        forwarding.start()
        empty = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(empty, stream)
        while True:
            ended, code = os.waitpid(-1, 0)
            if ended == pid:
                exit_code = os.waitstatus_to_exitcode(code)
                return exit_code if exit_code >= 0 else 128 - exit_code
    except _Ended:
        return status
    finally:
        for number in _ENDINGS:
            signal.signal(number, signal.SIG_IGN)
        _kill_descendants()
        if forwarding is not None:
            forwarding.join(_FLUSH_WAIT)


if __name__ == "__main__":
    if sys.platform == "linux":
        sys.exit(supervise(int(sys.argv[1]), sys.argv[2:]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - as above
