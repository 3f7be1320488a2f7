"""What a server tells about itself, in builtin values."""

from __future__ import annotations

import inspect
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import here

if TYPE_CHECKING:
    from paragent.remote.server.dispatcher import Host

__all__ = ["describe"]

_LISTED = 1_000
"""Agents that a list names at most; a server may have a million."""


def describe(host: Host, what: str, argument: Any) -> dict[str, Any]:
    """Return the report called `what`: `info` or `list`; `argument` limits the length of the list."""
    report: dict[str, Any] = {
        "place": here(),
        "instance": host.instance,
        "uptime": time.time() - host.started,
        "agents": host.residents.count,
        "clients": len(host.sessions),
        "calls_under_way": sum(len(session.active) for session in host.sessions.values()),
        "calls_under_way_bytes": sum(session.load for session in host.sessions.values()),
        "calls_waiting": host.schedule.lanes.waiting,
        "calls_served": host.served + sum(session.served for session in host.sessions.values()),
        "results_waiting_bytes": sum(session.backlog.size for session in host.sessions.values()),
        "results_kept": sum(len(session.kept) for session in host.sessions.values()),
        "threads": host.schedule.lanes.threads,
        "memory_bytes": _memory(),
        "accepts_code": host.policy.accept_code,
        "pid": os.getpid(),
    }
    if what == "list":
        limit = argument if type(argument) is int and 0 < argument < _LISTED else _LISTED
        report["list"] = _agents(host, limit)
    return report


def _agents(host: Host, limit: int) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    for session in list(host.sessions.values()):
        for agent in list(session.agents.values()):
            if len(listed) == limit:
                return listed
            # Not getattr: this is the I/O loop, where a property or `__getattr__` of a user must not run.
            name = inspect.getattr_static(agent.thing, "name", None)
            listed.append(
                {
                    "id": f"{session.identity[:8]}-{agent.number}",
                    "name": name if isinstance(name, str) else "",
                    "class": type(agent.thing).__qualname__ if agent.thing is not None else "",
                    "state": "failed" if agent.failed is not None else "busy" if agent.busy else "free",
                    "queue": len(agent.queue) if agent.queue else 0,
                    "served": agent.served,
                    "client": f"{session.program} {session.peer}".strip(),
                }
            )
    return listed


def _memory() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
