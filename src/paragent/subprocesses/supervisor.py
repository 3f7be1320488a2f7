"""Main program that runs one command and ends all its processes, even those that left its process group.

It runs alone (`python -I -S supervisor.py PARENT COMMAND ...`) and imports only the standard library, so it starts quickly. The
command has the standard streams of this process, which closes its own ends: both sides see when the other one closes a stream.
All descendants of the command are killed when the command exits, when this process gets SIGTERM, and when the thread that
started it ends for any reason, such as SIGKILL; Linux only. On other systems the command replaces this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import NoReturn

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of <linux/prctl.h>
_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILL_WAIT = 5.0
"""Seconds in which killed processes must disappear. Only a process that hangs in the kernel takes longer."""


class _Ended(BaseException):
    """A signal asks this process to end."""


def _end(*_: object) -> NoReturn:
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


def _start(command: list[str]) -> int:
    """Start the command and return its process id."""
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
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)  # if this supervisor itself is killed
        os.execvp(command[0], command)  # noqa: S606 - running a command is the purpose of this program
    except BaseException as error:  # noqa: BLE001 - reported to the parent; this process must not return
        os.write(writer, f"{command[0]}: {getattr(error, 'strerror', None) or error}".encode())
    os._exit(127)


def supervise(parent: int, command: list[str]) -> int:
    """Run a command to its end and return its exit status; 128 and the number for a signal."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_CHILD_SUBREAPER, 1)
    for number in _ENDINGS:
        signal.signal(number, _end)
    status = 128 + signal.SIGTERM
    try:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            return status  # the parent ended before the call above
        pid = _start(command)
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


if __name__ == "__main__":
    if sys.platform == "linux":
        sys.exit(supervise(int(sys.argv[1]), sys.argv[2:]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - as above
