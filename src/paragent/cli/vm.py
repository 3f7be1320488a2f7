"""`paragent vm`: build, list and remove images; run a single machine."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from paragent.cli.options import add_command, add_machine_options, machine_settings

if TYPE_CHECKING:
    import argparse

    from paragent.cli.options import Subparsers

__all__ = ["add"]

_BOOT_SECONDS = 900.0
"""For an image to boot once on a busy host; on an idle one it takes a minute."""


def add(subparsers: Subparsers) -> None:
    """Add the subcommands."""
    parser = add_command(subparsers, "vm", "build, list and remove images of machines; run a machine")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    build = add_command(commands, "build", "build an image from Debian packages")
    described = "tiny: a small Linux, for tests and sandboxes; desktop: a screen with applications, for OSWorld"
    build.add_argument("image", choices=["tiny", "desktop"], help=described)
    build.add_argument("--fresh", action="store_true", help="build the image even if it is up to date")
    build.add_argument(
        "--freeze",
        action="store_true",
        help="also boot the image once and save the golden state, which otherwise the first pool does",
    )
    build.set_defaults(run=_build)
    add_command(commands, "list", "list images and golden states").set_defaults(run=_list)
    remove = add_command(commands, "rm", "remove an image and its golden states")
    remove.add_argument("image", metavar="IMAGE", help="name of the image, as `paragent vm list` shows it")
    remove.set_defaults(run=_remove)
    shell = add_command(commands, "shell", "start a machine, run each line of input in it, and discard it")
    add_machine_options(shell)
    shell.set_defaults(run=_shell)


def _build(options: argparse.Namespace) -> int:
    from paragent.machines.images.desktop import build_desktop
    from paragent.machines.images.tiny import build_tiny

    began = time.monotonic()
    image = {"tiny": build_tiny, "desktop": build_desktop}[options.image](fresh=options.fresh)
    print(f"{image.name}: {image.size / 1e6:.0f} MB in {image.folder} ({time.monotonic() - began:.1f} s)")
    if options.freeze:
        _freeze(image.name)
    return 0


def _freeze(image: str) -> None:
    from paragent.machines import VMPoolManager

    began = time.monotonic()
    with VMPoolManager("qemu", 1, spares=0, name="freeze", path_to_vm=image, boot_seconds=_BOOT_SECONDS):
        print(f"{image}: golden state is ready ({time.monotonic() - began:.1f} s)")


def _list(_: argparse.Namespace) -> int:
    from rich.table import Table

    from paragent.cli.tables import console, escape
    from paragent.machines.images import frozen_states, images

    table = Table(title="images and golden states", title_justify="left")
    for heading in ("image", "kind", "size", "folder"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for image in images():
        kind = "image" if image.part_of is None else f"part of {image.part_of}"
        table.add_row(image.name, kind, f"{image.size / 1e6:.0f} MB", escape(str(image.folder)))
    for state in frozen_states():
        table.add_row(escape(state.image), "golden state", f"{state.size / 1e6:.0f} MB", escape(str(state.folder)))
    console().print(table)
    return 0


def _remove(options: argparse.Namespace) -> int:
    from paragent.machines.images import remove_image

    remove_image(options.image)
    print(f"removed {options.image}")
    return 0


def _shell(options: argparse.Namespace) -> int:
    from paragent.machines import VMPoolManager

    provider, settings = options.provider_name, machine_settings(options)
    with VMPoolManager(provider, 1, spares=0, name="shell", settings=settings) as pool, pool.lease() as machine:
        interactive = sys.stdin.isatty()
        if interactive:
            print(f"machine at {machine.address}; each line is a command, Ctrl-D discards the machine")
        status = 0
        while True:
            if interactive:
                print("$ ", end="", flush=True)
            line = sys.stdin.readline()
            if not line:
                return status
            if line.strip():
                result = machine.execute(line)
                print(result.output, end="", flush=True)
                print(result.error, end="", file=sys.stderr, flush=True)
                status = result.returncode
