"""How commands are added, and options that several commands share: machines and TLS."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.text import suggestion
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from paragent.machines import MachineSettings
    from paragent.rollout.config import Setting
    from paragent.transport import TlsConf

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # argparse has no public name for it

__all__ = [
    "add_command",
    "add_machine_options",
    "add_setting",
    "add_tls_options",
    "machine_settings",
    "run_folder",
    "tls_conf",
]


def add_command(
    subparsers: Subparsers, name: str, summary: str, description: str | None = None
) -> argparse.ArgumentParser:
    """Add a command and return its parser.

    Args:
        subparsers: where to add it.
        name: the name of the command.
        summary: one line for the list of commands.
        description: the first paragraph of the command's own help; None: the summary as a sentence.
    """
    return subparsers.add_parser(name, help=summary, description=description or f"{summary[0].upper()}{summary[1:]}.")


def add_setting(group: Any, setting: Setting) -> None:
    """Add the flag of a setting of rollouts."""
    default = "" if setting.default in (None, "", False) else f" (default: {setting.default})"
    settings: dict[str, Any] = {
        "dest": setting.name,
        "default": None,
        "help": (setting.help + default).replace("%", "%%"),
    }
    if setting.kind is bool:
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings["metavar"] = setting.metavar or {int: "N", float: "NUMBER"}.get(setting.kind, "NAME")
        if setting.kind in {list, dict}:
            settings["action"] = "append"
    group.add_argument(setting.flag, **settings)


def run_folder(path: Path, output_dir: Path = Path("results")) -> Path:
    """Return the directory of a run, given by its path or by its name in a folder.

    Raises:
        ConfigError: it does not exist.
    """
    from paragent.store import JOURNAL_FILE, find_runs

    for folder in (path, output_dir / path):
        if (folder / JOURNAL_FILE).exists():
            return folder
    close = suggestion(path.name, [run.name for run in find_runs(output_dir)])
    advice = "" if output_dir == Path("results") else f" --output-dir {output_dir}"
    raise ConfigError(f"there is no run {path}{close or ';'} `paragent runs{advice}` lists the runs in {output_dir}")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe machines."""
    group = parser.add_argument_group("machines")
    group.add_argument("--provider-name", metavar="NAME", default="qemu", help="provider of machines (default: qemu)")
    group.add_argument(
        "--path-to-vm",
        metavar="IMAGE",
        help="disk image, .vmx file, VirtualBox name, AMI, or name of a built image (default with qemu: tiny)",
    )
    group.add_argument("--snapshot-name", metavar="NAME", help="snapshot that machines are reset to")
    group.add_argument("--headless", action="store_true", default=True, help="show no display (the default)")
    group.add_argument("--display", dest="headless", action="store_false", help="show a display; with qemu by VNC")
    group.add_argument("--memory", type=int, metavar="MIB", help="memory of each machine in MiB")
    group.add_argument("--cores", type=int, metavar="N", help="CPU cores of each machine")
    group.add_argument("--screen-width", type=int, metavar="PIXELS", default=1920, help="screen width (default: 1920)")
    group.add_argument(
        "--screen-height", type=int, metavar="PIXELS", default=1080, help="screen height (default: 1080)"
    )
    group.add_argument(
        "--forward",
        type=int,
        action="append",
        default=[],
        metavar="PORT",
        help="port of the machine to forward; may be repeated",
    )
    group.add_argument(
        "--machines-host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address of this host at which its machines are reached (default: 127.0.0.1)",
    )
    group.add_argument("--region", metavar="NAME", help="region of the cloud provider")
    group.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the provider; may be repeated"
    )


def machine_settings(options: argparse.Namespace) -> MachineSettings:
    """Return the machine settings of the parsed options.

    Raises:
        ConfigError: an option is malformed or out of range.
    """
    from paragent.machines.providers.base import MachineSettings, parse_option

    pairs = [text.partition("=") for text in options.option]
    for name, separator, _ in pairs:
        if not separator:
            raise ConfigError(f"--option must be of the form NAME=VALUE, not {name!r}")
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
        options={name: parse_option(value) for name, _, value in pairs},
    )


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of TLS certificates."""
    group = parser.add_argument_group("TLS")
    group.add_argument("--tls-cert", metavar="FILE", help="PEM file: own certificate")
    group.add_argument("--tls-key", metavar="FILE", help="PEM file: private key of --tls-cert")
    group.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="PEM file: CA that signed the peer's certificate; of a server: clients need a certificate that it signed",
    )
    group.add_argument(
        "--tls-server-name", metavar="NAME", help="name in the server's certificate, if it differs from the host"
    )


def tls_conf(options: argparse.Namespace) -> TlsConf | None:
    """Return the TLS settings; None, which means no TLS, if no option is given."""
    from paragent.transport import TlsConf

    given = {name: getattr(options, f"tls_{name}") for name in ("ca", "cert", "key", "server_name")}
    return TlsConf(**given) if any(given.values()) else None
