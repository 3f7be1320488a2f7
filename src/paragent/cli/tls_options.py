"""Options of commands that serve, or connect, with TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from paragent.rpc import TlsConf

__all__ = ["add_tls_options", "tls_conf"]


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which certificates are shown and trusted."""
    group = parser.add_argument_group("TLS")
    group.add_argument("--tls-cert", metavar="FILE", help="PEM file: the certificate to show")
    group.add_argument("--tls-key", metavar="FILE", help="PEM file: its key")
    group.add_argument(
        "--tls-ca", metavar="FILE", help="PEM file: the authority that the other side's certificate must be from"
    )
    group.add_argument(
        "--tls-server-name", metavar="NAME", help="the name in the server's certificate, where it is not the host's"
    )


def tls_conf(options: argparse.Namespace) -> TlsConf | None:
    """Return what the options say; None if none is given, and only then is there no TLS."""
    from paragent.rpc import TlsConf

    given = {name: getattr(options, f"tls_{name}") for name in ("ca", "cert", "key", "server_name")}
    return TlsConf(**given) if any(given.values()) else None
