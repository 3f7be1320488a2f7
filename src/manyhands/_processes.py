"""Processes that end with their owner, whatever happens to either."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

__all__ = ["describe_exit", "die_with_parent", "end_own_group", "here", "kill_group"]


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
    return f"{socket.gethostname()}:{os.getpid()}"
