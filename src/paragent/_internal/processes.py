"""Processes: ending with their parent, groups, exit states, environment variables."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "bound_to_parent",
    "describe_exit",
    "die_with_parent",
    "end_own_group",
    "here",
    "is_alive",
    "kill_group",
    "plain_environment",
    "program",
]

_BIND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"  # PR_SET_PDEATHSIG, SIGKILL
"""Replaces `setpriv --pdeathsig` on systems without it; takes about 15 ms more."""
_PLAIN = {
    "HOME",
    "LANG",
    "LANGUAGE",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_RUNTIME_DIR",
}
"""Environment variables that programs need and that contain no secrets."""
_PROGRAM_CHARACTERS = 80
"""The longest name of a program in tables."""


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, even by SIGKILL; Linux only.

    This works even while native code keeps this process from noticing it.
    """
    if sys.platform != "linux":
        return
    import ctypes

    set_parent_death_signal = 1  # PR_SET_PDEATHSIG in <linux/prctl.h>
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads: the process and its descendants."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_own_group() -> None:
    """Kill this process and its descendants; only the leader of a process group may call it."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists on this host and has not ended.

    A zombie has ended. It stays until its parent asks for its exit status, which in some containers no process does.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it belongs to another user
        pass
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - workers start faster without pathlib
            return file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):  # not Linux, or hidden
        return True


def describe_exit(status: int | None) -> str:
    """Describe how a process ended, from `Popen.returncode`."""
    if status is None:
        return "was killed"
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def here() -> str:
    """Return the name of this process, `host:pid`."""
    return f"{os.uname().nodename}:{os.getpid()}"


def program() -> str:
    """Return the project and name of this program, as set by `paragent.init`: `project/name`, one of the two, or empty."""
    given = (os.environ.get(variable) for variable in ("PARAGENT_PROJECT", "PARAGENT_NAME"))
    return "/".join(part for part in given if part)[:_PROGRAM_CHARACTERS]


def plain_environment() -> dict[str, str]:
    """Return the environment variables that programs need, for processes that execute code that is not trusted.

    All others are left out, because users store API keys and passwords in environment variables.
    """
    return {name: value for name, value in os.environ.items() if name in _PLAIN or name.startswith("LC_")}


def bound_to_parent(command: Sequence[str]) -> list[str]:
    """Return a command line that runs `command` and kills it when the thread that starts it ends; Linux only.

    It is for programs that cannot call `die_with_parent` themselves.
    """
    if sys.platform != "linux":
        return list(command)
    import shutil

    if setpriv := shutil.which("setpriv"):
        return [setpriv, "--pdeathsig", "KILL", "--", *command]
    return [sys.executable, "-I", "-S", "-c", _BIND, *command]
