"""Processes that end with their owner, whatever happens to either."""

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
"""What `setpriv --pdeathsig` does, for systems without it; it takes some 15 ms more."""
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
"""Variables that say where things are, none of which is a secret."""
_PROGRAM_CHARACTERS = 80
"""Of what a program calls itself: as much as a line of a table has room for."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends, even by SIGKILL; Linux only.

    It covers the case in which this process cannot notice by itself because native code holds it.
    """
    if sys.platform != "linux":
        return
    import ctypes

    set_parent_death_signal = 1  # PR_SET_PDEATHSIG in <linux/prctl.h>
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads: the process and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_own_group() -> None:
    """End this process and all that it started, at once; only the leader of a group may call it."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def is_alive(pid: int) -> bool:
    """Return whether there is a process of this number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def describe_exit(status: int | None) -> str:
    """Say in words how a process ended, from `Popen.returncode`."""
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
    """Return the name of this place, `host:pid`."""
    return f"{os.uname().nodename}:{os.getpid()}"


def program() -> str:
    """Return what `paragent.init` was told of this program, `project/name` or one of the two; empty if nothing."""
    given = (os.environ.get(variable) for variable in ("PARAGENT_PROJECT", "PARAGENT_NAME"))
    return "/".join(part for part in given if part)[:_PROGRAM_CHARACTERS]


def plain_environment() -> dict[str, str]:
    """Return the part of this process's environment that programs need to run, for those that run other people's code.

    Everything else stays here: variables are where users keep API keys and passwords.
    """
    return {name: value for name, value in os.environ.items() if name in _PLAIN or name.startswith("LC_")}


def bound_to_parent(command: Sequence[str]) -> list[str]:
    """Return a command line that runs `command` in such a way that it ends with the thread that starts it; Linux only.

    It is for programs of others, which cannot call `die_with_parent` themselves.
    """
    if sys.platform != "linux":
        return list(command)
    import shutil

    if setpriv := shutil.which("setpriv"):
        return [setpriv, "--pdeathsig", "KILL", "--", *command]
    return [sys.executable, "-I", "-S", "-c", _BIND, *command]
