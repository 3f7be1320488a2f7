"""Whether another machine's port answers, and which address of ours it sees: asked before a foreign library waits minutes."""

from __future__ import annotations

import socket

from paragent.errors import EngineFailed

__all__ = ["local_address_towards", "require_reachable"]

_REACH = 3.0
"""Seconds that a connection may take; a port that answers at all does so within one round trip."""


def require_reachable(address: str, default_port: int, what: str) -> tuple[str, int]:
    """Connect to `host[:port]` once; return the host and the port.

    Raises:
        EngineFailed: nobody answers there.
    """
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    target = (host.strip("[]") or "127.0.0.1", int(port) if port.isdigit() else default_port)
    try:
        socket.create_connection(target, timeout=_REACH).close()
    except OSError as error:
        raise EngineFailed(
            f"{what} at {target[0]}:{target[1]} does not answer: {error}. Check the address, that the cluster runs, and the "
            "firewall between; or use in_local=True to start one on this machine"
        ) from error
    return target


def local_address_towards(target: tuple[str, int]) -> str:
    """Return the address of this machine from which `target` is reached."""
    family, kind, _, _, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram socket: sends nothing
        return str(probe.getsockname()[0])
