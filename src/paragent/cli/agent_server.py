"""`paragent agent-server`: run or control an agent server; `paragent agents`: list its agents."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import import_named_module
from paragent._internal.text import counted
from paragent.cli.options import add_command, add_tls_options, tls_conf
from paragent.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from paragent.cli.options import Subparsers
    from paragent.remote.link import Link
    from paragent.remote.status import AgentServerStatus
    from paragent.transport import TlsConf

__all__ = ["add"]

_TIMEOUT = 10.0
"""Seconds to wait for a server's reply."""


def add(subparsers: Subparsers) -> None:
    """Add the commands."""
    server = add_command(
        subparsers,
        "agent-server",
        "run an agent server, or inspect or stop a running one",
        "Run an agent server, or inspect or stop a running one. Clients must know the server's token. It is the variable "
        "PARAGENT_TOKEN (at least 16 characters) or else the content of ~/.config/paragent/token, which paragent creates. "
        "Programs of the same user on this host read that file. For a client on another host, copy the token and set it as "
        "PARAGENT_TOKEN there.",
    )
    server.add_argument(
        "action",
        nargs="?",
        choices=["run", "list", "info", "stop"],
        default="run",
        help="run a server (the default); list the agents of a running server, print a report about it, or stop it",
    )
    _add_address(server)
    server.add_argument(
        "--module",
        action="append",
        default=[],
        help="create only agents of the classes in this module, and accept no code from clients; may be repeated",
    )
    server.add_argument(
        "--accept-code", action="store_true", help="with --module: also accept classes that clients send"
    )
    server.add_argument(
        "--accept-state",
        action="store_true",
        help="with --module: accept agents that clients move here in any state, without running their constructors",
    )
    server.add_argument(
        "--peer-ca",
        metavar="FILE",
        help="PEM file: CA of other agent servers, to fetch results from them and to call their agents (default: --tls-ca)",
    )
    server.add_argument(
        "--trusted-server",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="with --module: another agent server on which agents of this server may create and call agents; may be repeated",
    )
    server.add_argument(
        "--lease",
        type=float,
        metavar="SECONDS",
        default=10.0,
        help="free the agents of a disconnected client after this time (default: 10)",
    )
    server.add_argument(
        "--reconnect-timeout",
        type=float,
        metavar="SECONDS",
        default=1.0,
        help="with --module: let agents of this server wait this long for other agent servers that do not answer, when they call "
        "agents whose proxies clients passed to them (default: 1)",
    )
    server.set_defaults(run=run)
    agents = add_command(subparsers, "agents", "list the agents of a running agent server")
    _add_address(agents)
    agents.add_argument("--limit", type=int, metavar="N", default=50, help="maximum number of agents (default: 50)")
    agents.add_argument("--json", action="store_true", help="print the state of the server as JSON")
    agents.set_defaults(run=show)


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="localhost",
        help="host name or address of the server (default: localhost, which only this host can reach)",
    )
    parser.add_argument("--port", type=int, default=12345, help="port (default: 12345)")
    add_tls_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run a server until it is stopped, or control a running one."""
    if options.action != "run":
        return _control(options)
    from paragent.remote.launcher import RpcAgentServerLauncher

    classes = [cls for name in options.module for cls in _agent_classes(name)]
    launcher = RpcAgentServerLauncher(
        options.host,
        options.port,
        classes,
        accept_code=options.accept_code or not classes,
        tls=tls_conf(options),
        peer_tls=_peer_tls(options),
        trusted_servers=options.trusted_server,
        accept_state=options.accept_state or None,
        lease=options.lease,
        reconnect_timeout=options.reconnect_timeout,
    )
    with launcher.stopping_at_signals():
        launcher.launch(in_subprocess=False)
        launcher.wait_until_terminate()
    return 0


def _peer_tls(options: argparse.Namespace) -> TlsConf | None:
    """Return the TLS settings for connections to other servers; None: the settings of this server."""
    if options.peer_ca is None:
        return None
    from paragent.transport import TlsConf

    return TlsConf(ca=options.peer_ca, cert=options.tls_cert, key=options.tls_key)


def _agent_classes(name: str) -> list[type]:
    from paragent.agents import AgentBase

    module = import_named_module(name, "--module ")
    found = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, AgentBase) and cls is not AgentBase and cls.__module__ == module.__name__
    ]
    if not found:
        raise ConfigError(f"--module {name}: the module defines no agent class (subclass of AgentBase)")
    return found


def _link(options: argparse.Namespace) -> Link:
    from paragent.remote.link import link_to
    from paragent.transport import Address

    return link_to(Address.of(options.host, options.port), tls_conf(options))


def _control(options: argparse.Namespace) -> int:
    report: Any = _link(options).control(options.action).result(_TIMEOUT)
    if options.action == "stop":
        print(f"agent server at {options.host}:{options.port} is stopping")
    else:
        print(json.dumps(report, indent=2))
    return 0


def show(options: argparse.Namespace) -> int:
    """Print the agents of a server as a table."""
    from paragent.cli.tables import console
    from paragent.remote.status import AgentServerMonitor
    from paragent.transport import Address

    monitor = AgentServerMonitor(Address.of(options.host, options.port), tls_conf(options))
    status = monitor.status(options.limit)
    monitor.close()
    if options.json:
        print(json.dumps(asdict(status), indent=2))
        return 0
    out = console()
    out.print(
        f"{status.process}: {counted(status.agents, 'agent')} of {counted(status.clients, 'client')}, "
        f"{counted(status.under_way, 'call')} in progress, {status.calls:,} served, "
        f"{status.calls_per_second:,.0f} per second, {status.memory / 2**20:,.0f} MiB, up {status.seconds:,.0f} s"
    )
    out.print(_agents_table(status))
    return 0


def _agents_table(status: AgentServerStatus) -> Any:
    from rich.table import Table

    from paragent.cli.tables import escape

    table = Table()
    numbers = ("queue", "running", "served", "failed", "seconds")
    errors = ("error",) if any(agent.error for agent in status.listed) else ()
    for column in ("id", "name", "class", "state", *errors, *numbers, "client"):
        table.add_column(column, justify="right" if column in numbers else "left")
    for agent in status.listed:
        figures = [f"{number:,}" for number in (agent.queued, agent.running, agent.calls, agent.failed)]
        state = (agent.state, agent.error) if errors else (agent.state,)
        texts = (agent.id, agent.name, agent.kind, *state, *figures, f"{agent.seconds:,.1f}", agent.client)
        table.add_row(*map(escape, texts))
    return table
