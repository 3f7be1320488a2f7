"""`manyhands`: the command and its subcommands."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.cli import agent_server, demo, osworld, pool, rollout, runs, vm
from manyhands.errors import Interrupted, ManyhandsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_COMMANDS = (demo, rollout, runs, agent_server, pool, vm, osworld)
"""Each has `add(subparsers)`, which sets `run`: a function of the parsed arguments that returns the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="manyhands", description="Run agents in parallel, from one laptop to a cluster."
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(subparsers)
    options = parser.parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # where `--agent module:Class` and the like are, as with `python -m`
    try:
        return int(options.run(options))
    except ManyhandsError as error:
        print(f"manyhands: {error}", file=sys.stderr)
        return 1
    except (Interrupted, KeyboardInterrupt) as interruption:
        print(f"manyhands: {interruption or 'interrupted'}", file=sys.stderr)
        return 130
