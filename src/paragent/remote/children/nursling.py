"""A server process from the inside: forked by the warm parent, on a leash held by its owner."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
from typing import Any

from paragent._processes import die_with_parent, end_own_group
from paragent._threads import write_traceback
from paragent.remote.children.collecting import collect_as_needed

__all__ = ["live", "warm_up"]

_NEEDED = (
    "ctypes",  # by `die_with_parent`, in every child
    "paragent.remote.server.peers",
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
    from paragent.rpc.address import Address
    from paragent.rpc.limits import Limits
    from paragent.rpc.loop import on_failure, run
    from paragent.rpc.token import load_token

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
