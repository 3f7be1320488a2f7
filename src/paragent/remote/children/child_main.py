"""Agent server process: `run_forked` runs in a child of the fork server, `main` in a process of a launcher.

A forked server ends when the lifeline closes, a socket that it shares with the program. The process of a launcher ends when
its standard input closes. Both kill the processes that they have started.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from typing import Any

from paragent._internal.processes import die_with_parent, end_own_group
from paragent._internal.threads import write_traceback

__all__ = ["collect_as_needed", "main", "preload", "run_forked"]

_START_SECONDS = 10.0

# --- garbage collection -----------------------------------------------------------------------------------------------

_LEAST_NEW = 100_000
"""New objects before a collection. A server creates and drops objects by the hundred thousand; with Python's default of 700 it
spends half of its time on collections."""
_MOST_NEW = 16 * _LEAST_NEW
"""The same while collections find no garbage: the objects of 30,000 running calls (15 each) and 500,000 queued calls (2
each)."""
_OLDER = 5_000_000
"""New objects before a collection of the older generation. Queued calls reach that generation and are gone within a second;
with this interval, most objects in it are permanent."""
_GARBAGE_SHARE = 0.01
"""A collection was useful if it freed more than this share of the new objects."""


def collect_as_needed() -> None:
    """Adapt the frequency of garbage collections to the garbage that they find, unless other code sets the thresholds."""
    ours = _thresholds(_LEAST_NEW)

    def adapt(phase: str, info: dict[str, Any]) -> None:
        nonlocal ours
        if phase != "stop" or gc.get_threshold() != ours:
            return
        if info["collected"] > _GARBAGE_SHARE * ours[0]:
            ours = _thresholds(_LEAST_NEW)
        elif info["generation"] == 0:
            ours = _thresholds(min(2 * ours[0], _MOST_NEW))
        gc.set_threshold(*ours)

    gc.set_threshold(*ours)
    gc.callbacks.append(adapt)
    gc.enable()


def _thresholds(youngest: int) -> tuple[int, int, int]:
    return youngest, _OLDER // youngest, 10


# --- a child of the fork server ---------------------------------------------------------------------------------------

_PRELOADED = (
    "ctypes",  # `die_with_parent` needs it in every child
    "paragent.remote.server.references",
    "paragent.remote.server.policy",
    "paragent.remote.server.service",
)


def preload(modules: list[str]) -> None:
    """Import the modules that a server needs, and those of this package that the program uses. None opens a connection."""
    for name in (*_PRELOADED, *modules):
        importlib.import_module(name)


def run_forked(settings: dict[str, Any], descriptor: int) -> None:
    """Serve until the lifeline closes; never returns.

    Args:
        settings: as `remote.children.pool` sends them.
        descriptor: the file descriptor of the lifeline.
    """
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
    lifeline = socket.socket(fileno=descriptor)
    try:
        _serve(settings)
        lifeline.send(b"ready %d" % os.getpid())
        while lifeline.recv(1):
            continue
    except BaseException as error:  # noqa: BLE001 - a process that cannot start reports why and ends
        lifeline.send(f"{type(error).__name__}: {error}".encode()[:1000])
    finally:
        end_own_group()


def _serve(settings: dict[str, Any]) -> None:
    from paragent.remote.placement import limit_process
    from paragent.remote.server.policy import Policy
    from paragent.remote.server.service import open_server
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
    run(opening, _START_SECONDS)


def _thread_failed(name: str, error: BaseException) -> None:
    """End this process and the processes that it started: without the thread its clients would wait forever."""
    try:
        write_traceback(f"the thread {name!r} ended unexpectedly, so agent server {os.getpid()} ends", error)
    finally:
        end_own_group()


# --- the process of a launcher ----------------------------------------------------------------------------------------


def main() -> None:
    """Run the agent server that the launcher describes on standard input, until that is closed."""
    import pickle

    from paragent.errors import ParagentError

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that output of agents is not read as an answer
    sys.path[:], code, body = pickle.load(source)
    from paragent.remote.launcher import RpcAgentServerLauncher
    from paragent.serialization import Payload, unpack

    launcher = RpcAgentServerLauncher(**unpack(Payload(body, code)))
    try:
        launcher.launch(in_subprocess=False)
    except ParagentError as error:
        answers.write(f"{error}\n")
        answers.close()
        return

    def watch() -> None:
        try:
            source.read()
            launcher.shutdown()
        finally:
            end_own_group()

    threading.Thread(target=watch, daemon=True).start()
    answers.write(f"{launcher.port}\n")
    answers.close()
    try:
        launcher.wait_until_end()
    finally:
        end_own_group()


if __name__ == "__main__":
    main()
