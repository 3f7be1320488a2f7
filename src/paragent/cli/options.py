"""Options of commands that make machines, as the rollout guide names them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from paragent.machines import MachineSettings
    from paragent.transport import TlsConf

__all__ = ["add_machine_options", "add_tls_options", "machine_settings", "tls_conf"]


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which machines are meant."""
    group = parser.add_argument_group("machines")
    group.add_argument("--provider-name", default="qemu", help="where machines come from (default: qemu)")
    group.add_argument("--path-to-vm", help="the image: a disk, the name of a built image, an AMI (default: tiny)")
    group.add_argument("--snapshot-name", help="the snapshot that a reset goes back to")
    group.add_argument("--headless", action="store_true", default=True, help="no display (the default)")
    group.add_argument("--display", dest="headless", action="store_false", help="show a display, by VNC with qemu")
    group.add_argument("--memory", type=int, metavar="MIB", help="memory of each machine")
    group.add_argument("--cores", type=int, help="processors of each machine")
    group.add_argument("--screen-width", type=int, metavar="PIXELS", default=1920, help="(default: 1920)")
    group.add_argument("--screen-height", type=int, metavar="PIXELS", default=1080, help="(default: 1080)")
    group.add_argument(
        "--forward", type=int, action="append", default=[], metavar="PORT", help="a guest's port to reach"
    )
    group.add_argument("--machines-host", default="127.0.0.1", help="where machines of this host are reached")
    group.add_argument("--region", help="of the cloud")
    group.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the provider alone")


def machine_settings(options: argparse.Namespace) -> MachineSettings:
    """Return what the options say.

    Raises:
        ConfigError: an option has no such form or value.
    """
    from paragent.machines import MachineSettings

    return MachineSettings(
        path_to_vm=options.path_to_vm,
        snapshot_name=options.snapshot_name,
        headless=options.headless,
        memory_mib=options.memory,
        cores=options.cores,
        screen=(options.screen_width, options.screen_height),
        forwards=tuple(options.forward),
        host=options.machines_host,
        region=options.region,
        options=dict(_option(text) for text in options.option),
    )


def _option(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"--option has the form NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


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
    from paragent.transport import TlsConf

    given = {name: getattr(options, f"tls_{name}") for name in ("ca", "cert", "key", "server_name")}
    return TlsConf(**given) if any(given.values()) else None
