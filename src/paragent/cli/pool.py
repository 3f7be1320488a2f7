"""`paragent pool`: serve a pool of machines, show it and the logs of its machines, drain it, replace a machine."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from paragent._internal.signals import signals_end
from paragent._internal.text import counted
from paragent.cli.options import add_command, add_machine_options, add_tls_options, machine_settings, tls_conf
from paragent.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from paragent.cli.options import Subparsers
    from paragent.machines import PoolClient, PoolStatus

__all__ = ["add"]

_COLOURS = {
    "booting": "blue",
    "free": "dim",
    "leased": "green",
    "resetting": "yellow",
    "quarantined": "red",
    "stopped": "dim",
}
_TICK = 0.2
"""Seconds between checks whether a client has requested a drain."""


def add(subparsers: Subparsers) -> None:
    """Add the subcommands."""
    parser = add_command(subparsers, "pool", "serve a pool of machines, or inspect or drain a running one")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve = add_command(commands, "serve", "start machines and serve them until Ctrl-C or `paragent pool drain`")
    serve.add_argument(
        "--num-vms",
        type=int,
        metavar="N",
        default=3,
        help="number of machines that can be leased at a time (default: 3)",
    )
    serve.add_argument(
        "--num-spares",
        type=int,
        metavar="N",
        help="additional machines kept ready, so that requests do not wait for resets (default: the provider's)",
    )
    serve.add_argument(
        "--name",
        default="default",
        help="name of the pool; it removes what killed pools of the same name left behind (default: default)",
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=0, help="port to listen at (default: any free port)")
    add_machine_options(serve)
    add_tls_options(serve)
    serve.set_defaults(run=_serve)
    for name, run, help_text in (
        ("status", _status, "show the table of machines"),
        ("drain", _drain, "grant no more leases; the pool stops when all leases have ended"),
        ("retire", _retire, "replace a machine, now or when its lease ends"),
        ("log", _log, "print the end of a machine's log"),
    ):
        command = add_command(commands, name, help_text)
        command.add_argument("--pool", metavar="HOST:PORT", help="address of the pool (default: PARAGENT_POOL)")
        if name == "status":
            command.add_argument("--json", action="store_true", help="print the state of the pool as JSON")
        if name in {"retire", "log"}:
            command.add_argument(
                "machine", metavar="MACHINE", help="id of the machine, as `paragent pool status` shows it"
            )
        add_tls_options(command)
        command.set_defaults(run=run)


def _serve(options: argparse.Namespace) -> int:
    import logging

    from paragent.machines import VMPoolManager

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    started, ended = threading.Event(), threading.Event()
    pool = VMPoolManager(
        options.provider_name,
        options.num_vms,
        spares=options.num_spares,
        name=options.name,
        settings=machine_settings(options),
    )
    with signals_end(started, ended):
        try:
            pool.start(wait_for=0)
            started.set()
            server = pool.serve(options.host, options.port, tls=tls_conf(options))
            print(f"pool {options.name} is served at {server.address}", flush=True)
            print(f"show its machines with: paragent pool status --pool {server.address}", flush=True)
            while not ended.wait(_TICK) and not pool.failure:
                if server.drain_requested and pool.drain(timeout=0):
                    print("drained: all leases have ended", flush=True)
                    return 0
            if pool.failure:
                print(f"the pool failed: {pool.failure}", flush=True)
                return 1
        finally:
            pool.stop()
    print("stopped: all machines have ended", flush=True)
    return 0


def _client(options: argparse.Namespace) -> PoolClient:
    from paragent.machines import PoolClient

    address = options.pool or os.environ.get("PARAGENT_POOL")
    if not address:
        raise ConfigError(
            "the address of the pool is missing: pass --pool HOST:PORT, as `paragent pool serve` printed it"
        )
    return PoolClient(address, tls=tls_conf(options))


def _status(options: argparse.Namespace) -> int:
    from paragent.cli.tables import console

    with _client(options) as client:
        status = client.status()
    if options.json:
        print(json.dumps(asdict(status), indent=2))
    else:
        console().print(_table(status))
    return 0


def _drain(options: argparse.Namespace) -> int:
    with _client(options) as client:
        client.drain()
    print("the pool grants no more leases and stops when all leases have ended")
    return 0


def _retire(options: argparse.Namespace) -> int:
    with _client(options) as client:
        client.retire(options.machine)
    print(f"{options.machine} is replaced now or when its lease ends")
    return 0


def _log(options: argparse.Namespace) -> int:
    with _client(options) as client:
        text = client.machine_log(options.machine)
    print(text.rstrip("\n") if text else f"there is no log of {options.machine}")
    return 0


def _table(status: PoolStatus) -> Any:
    from rich.table import Table

    from paragent.cli.tables import escape

    note = f", failed: {status.failure}" if status.failure else ", draining" if status.draining else ""
    machines, spares = counted(status.size, "machine"), counted(status.spares, "spare")
    title = f"{status.pool}: {status.provider}, {machines} and {spares}, {status.waiting} waiting"
    table = Table(title=escape(title + note), title_justify="left")
    for heading in ("machine", "state", "for", "holder", "leases", "resets", "failures", "address", "reason"):
        numbers = {"for", "leases", "resets", "failures"}
        table.add_column(heading, justify="right" if heading in numbers else "left")
    for row in status.machines:
        colour = _COLOURS[row.state]
        table.add_row(
            escape(row.id),
            f"[{colour}]{row.state}[/]",
            f"{row.seconds:.0f} s",
            escape(row.holder),
            str(row.leases),
            str(row.resets),
            str(row.failures),
            escape(row.address),
            escape(row.reason),
        )
    return table
