"""Status of an agent server: what it reports about itself and its agents, read without unpickling anything."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import monotonic
from paragent.errors import ProtocolError
from paragent.remote.link import Link, data_link
from paragent.transport.loop import run

if TYPE_CHECKING:
    from paragent.transport.address import Address, TlsConf

__all__ = ["AgentServerMonitor", "AgentServerStatus", "AgentStatus"]

_TIMEOUT = 5.0
"""Seconds to wait for a report; a server that cannot be reached is noticed within two seconds."""
_RATE_SECONDS = 0.5
"""The shortest time over which calls per second are measured."""
_SAMPLES = 20
"""Earlier reports that are remembered, to measure calls per second."""
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """An agent of a server."""

    id: str
    name: str
    kind: str
    """Its class; empty while its constructor runs."""
    state: str
    """`free`, `busy`, or `failed` if it could not be constructed."""
    error: str
    """Why it could not be constructed: the type and the message of the error."""
    queued: int
    """Calls that wait for it."""
    running: int
    """Calls that it executes."""
    calls: int
    """Calls that have ended."""
    failed: int
    """Calls that ended with an error."""
    seconds: float
    """Duration of its constructor and of the calls that have ended."""
    client: str
    """Program and address of the client that owns it; if that has dropped it, of one that holds a copy of its proxy."""


@dataclass(frozen=True, slots=True)
class AgentServerStatus:
    """An agent server."""

    process: str
    """`host:pid`."""
    agents: int
    clients: int
    queued: int
    """Calls that wait for their agent."""
    under_way: int
    """Calls that wait or are executed."""
    calls: int
    """Calls that have ended."""
    calls_per_second: float
    """In the last second or so."""
    memory: int
    """Bytes of resident memory."""
    seconds: float
    """Since its start."""
    listed: tuple[AgentStatus, ...]
    """Some of the agents: those with the longest queues first."""


class AgentServerMonitor:
    """Asks one agent server for its status, again and again. The constructor does not connect. Any thread may use it.

    Args:
        address: where the server listens.
        tls: for a server that uses TLS.
    """

    def __init__(self, address: Address, tls: TlsConf | None = None) -> None:
        self.address = address
        self._tls = tls
        self._link: Link | None = None
        self._samples: deque[tuple[str, float, int]] = deque(maxlen=_SAMPLES)
        """Server process, time and number of calls of earlier reports."""
        self._lock = threading.Lock()
        """Protects both."""

    def status(self, limit: int = 1_000) -> AgentServerStatus:
        """Return the status with at most `limit` agents. The first call takes half a second, to measure calls per second.

        Raises:
            ServerLost: no server answers at the address.
            AccessDenied: the server has another token.
            ProtocolError: it sent something else than a report.
            TimeoutError: it did not answer in time.
        """
        report = self._report(limit)
        if (rate := self._rate(report)) is None:
            time.sleep(_RATE_SECONDS)
            report = self._report(limit)
            rate = self._rate(report) or 0.0
        try:
            return _status(report, rate)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"the server at {self.address} sent a malformed report: {error!r}") from error

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            run(link.close(_CLOSE_SECONDS), 2 * _CLOSE_SECONDS)

    def _report(self, limit: int) -> dict[str, Any]:
        with self._lock:
            if self._link is None or self._link.lost is not None or self._link.broken:
                self._link = data_link(self.address, self._tls)
            link = self._link
        report = link.control("list", limit).result(_TIMEOUT)
        if not isinstance(report, dict):
            raise ProtocolError(f"the server at {self.address} sent a malformed report")
        return report

    def _rate(self, report: dict[str, Any]) -> float | None:
        """Return the calls per second since the newest report that is old enough; None if there is none."""
        now, instance, calls = monotonic(), str(report.get("instance")), int(report.get("calls_served", 0))
        with self._lock:
            earlier = [(at, count) for known, at, count in self._samples if known == instance]
            self._samples.append((instance, now, calls))
        for at, count in reversed(earlier):
            if now - at >= _RATE_SECONDS:
                return (calls - count) / (now - at)
        return None


def _status(report: dict[str, Any], rate: float) -> AgentServerStatus:
    listed = [
        AgentStatus(
            id=str(agent["id"]),
            name=str(agent["name"]),
            kind=str(agent["class"]),
            state=str(agent["state"]),
            error=str(agent["error"]),
            queued=int(agent["queue"]),
            running=int(agent["running"]),
            calls=int(agent["served"]),
            failed=int(agent["failed"]),
            seconds=float(agent["seconds"]),
            client=str(agent["client"]),
        )
        for agent in report["list"]
    ]
    return AgentServerStatus(
        process=str(report["process"]),
        agents=int(report["agents"]),
        clients=int(report["clients"]) - 1,  # this monitor is one
        queued=int(report["calls_queued"]),
        under_way=int(report["calls_under_way"]),
        calls=int(report["calls_served"]),
        calls_per_second=rate,
        memory=int(report["memory_bytes"]),
        seconds=float(report["uptime"]),
        listed=tuple(listed),
    )
