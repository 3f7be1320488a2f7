"""Agent servers of the view: those named on the command line. A server that does not answer has a `problem`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from paragent.errors import ConfigError, ParagentError
from paragent.remote.status import AgentServerMonitor
from paragent.transport import Address
from paragent.view.api import AgentServerDetail, AgentServerList, AgentServerRow, ServedAgent
from paragent.view.runs import UnknownRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.remote.status import AgentServerStatus
    from paragent.transport import TlsConf

__all__ = ["ServerViews"]

_THREADS = 8
"""Servers that are asked at the same time; one that cannot be reached takes two seconds."""


class ServerViews:
    """Makes the records of agent servers. Its methods block for seconds if a server does not answer.

    Args:
        addresses: `host:port` of the servers, which have the user's token.
        tls: for servers that use TLS.

    Raises:
        ConfigError: an address is malformed.
    """

    def __init__(self, addresses: Sequence[str] = (), tls: TlsConf | None = None) -> None:
        self._monitors = {address: AgentServerMonitor(_parsed(address), tls) for address in dict.fromkeys(addresses)}

    def servers(self) -> AgentServerList:
        """Return all servers."""
        if not self._monitors:
            return AgentServerList([])
        with ThreadPoolExecutor(min(_THREADS, len(self._monitors))) as threads:
            return AgentServerList([detail.row for detail in threads.map(self.server, self._monitors)])

    def server(self, server_id: str) -> AgentServerDetail:
        """Return one server with its agents, those with the longest queues first.

        Raises:
            UnknownRun: the view knows no such server.
        """
        monitor = self._monitors.get(server_id)
        if monitor is None:
            raise UnknownRun(f"there is no agent server {server_id!r}: name it with --agent-server")
        try:
            status = monitor.status()
        except (ParagentError, TimeoutError) as error:
            problem = str(error) or "it does not answer in time"
            return AgentServerDetail(AgentServerRow(server_id, server_id, 0, 0, 0.0, 0, 0.0, problem), [])
        return _detail(server_id, status)


def _detail(server_id: str, status: AgentServerStatus) -> AgentServerDetail:
    row = AgentServerRow(
        id=server_id,
        address=server_id,
        agents=status.agents,
        queued=status.queued,
        calls_per_second=status.calls_per_second,
        memory=status.memory,
        seconds=status.seconds,
    )
    agents = [
        ServedAgent(
            id=agent.id,
            name=agent.name,
            kind=agent.kind,
            queued=agent.queued,
            running=agent.running,
            calls=agent.calls,
            failed=agent.failed,
            seconds=agent.seconds,
            error=agent.error,
        )
        for agent in status.listed
    ]
    return AgentServerDetail(row, agents)


def _parsed(address: str) -> Address:
    host, separator, port = address.rpartition(":")
    if not separator:
        raise ConfigError(f"the address of an agent server has the form host:port, not {address!r}")
    return Address.of(host.strip("[]"), port)
