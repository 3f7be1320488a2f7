"""A server process from the inside: forked by the warm parent, on a leash held by its owner."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import sys
from typing import Any

from paragent._internal.processes import die_with_parent, end_own_group
from paragent._internal.threads import write_traceback

__all__ = ["collect_as_needed", "live", "warm_up"]


_FEWEST = 100_000
"""New objects after which the collector looks. A server makes and drops them by the hundred thousand at a time; with
Python's 700 half of its time would go into looking."""
_MOST = 16 * _FEWEST
"""The same while nothing is ever found: what 30,000 calls under way (15 objects each) and 500,000 that wait (2) come to."""
_OLDER = 5_000_000
"""New objects after which those that were looked at once are looked at again. Calls that wait are old objects that are gone
in a second; with so many in between it is mostly what stays."""
_FOUND = 0.01
"""The share of the new objects, found to be garbage, from which on looking was worth it."""


def collect_as_needed() -> None:
    """Have the collector of this process look as often as what it finds is worth, unless somebody else sets it."""
    ours = _thresholds(_FEWEST)

    def adapt(phase: str, info: dict[str, Any]) -> None:
        nonlocal ours
        if phase != "stop" or gc.get_threshold() != ours:
            return
        if info["collected"] > _FOUND * ours[0]:
            ours = _thresholds(_FEWEST)
        elif info["generation"] == 0:
            ours = _thresholds(min(2 * ours[0], _MOST))
        gc.set_threshold(*ours)

    gc.set_threshold(*ours)
    gc.callbacks.append(adapt)
    gc.enable()


def _thresholds(youngest: int) -> tuple[int, int, int]:
    return youngest, _OLDER // youngest, 10


_NEEDED = (
    "ctypes",  # by `die_with_parent`, in every child
    "paragent.remote.server.references",
    "paragent.remote.server.policy",
    "paragent.remote.server.service",
)


def warm_up(modules: list[str]) -> None:
    """Import everything that a server needs, and what of this package its owner uses; none of it opens a connection."""
    for name in (*_NEEDED, *modules):
        importlib.import_module(name)


def live(settings: dict[str, Any], leash: int) -> None:
    """Be a server until the owner lets go of the leash; never returns."""
    parent = os.getppid()
    os.setpgid(0, 0)
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.getppid() != parent:
        end_own_group()
    sys.path[:] = settings["sys_path"]
    os.environ.update(settings["environ"])
    os.chdir(settings["cwd"])
    collect_as_needed()
    logging.basicConfig(level=settings["log_level"])
    connection = socket.socket(fileno=leash)
    try:
        _serve(settings)
        connection.send(b"ready %d" % os.getpid())
        while connection.recv(1):
            continue
    except BaseException as error:  # noqa: BLE001 - a process that cannot start says why and ends
        connection.send(f"{type(error).__name__}: {error}".encode()[:1000])
    finally:
        end_own_group()


def _serve(settings: dict[str, Any]) -> None:
    from paragent.remote.server.policy import Policy
    from paragent.remote.server.service import open_server
    from paragent.remote.trust import limit_process
    from paragent.transport.address import Address
    from paragent.transport.auth import load_token
    from paragent.transport.limits import Limits
    from paragent.transport.loop import on_failure, run

    if settings["trusted"] is not None:
        limit_process(frozenset(Address(*address) for address in settings["trusted"]))
    limits = Limits()
    policy = Policy((), accept_code=True, nesting=limits.nesting)
    opening = open_server(
        Address("", 0, settings["path"]),
        policy,
        load_token(),
        tls=None,
        limits=limits,
        lease=settings["lease"],
        stop=end_own_group,
        failed=_thread_failed,
    )
    on_failure(_thread_failed)
    run(opening, 10.0)


def _thread_failed(name: str, error: BaseException) -> None:
    """End this process and what it started: without the thread its clients would wait for ever."""
    try:
        write_traceback(f"the thread {name!r} ended unexpectedly, so agent server {os.getpid()} ends", error)
    finally:
        end_own_group()
