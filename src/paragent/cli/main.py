"""`paragent`: the command and its subcommands."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.text import safe_streams
from paragent.cli import agent_server, demo, osworld, pool, rollout, runs, vm
from paragent.errors import Interrupted, ParagentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_COMMANDS = (demo, rollout, runs, agent_server, pool, vm, osworld)
"""Each has `add(subparsers)`, which sets `run`: a function of the parsed arguments that returns the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C.

    `paragent rollout` returns 0 only if every rollout has a result of its own; 1 if some failed or are owed.
    Whatever is printed meanwhile, also by agents and tasks, reaches the terminal without control characters.
    """
    with safe_streams():
        try:
            return _main(arguments)
        except Exception:  # noqa: BLE001 - a mistake of ours: shown as Python would, but its message may be of others
            traceback.print_exc()
            return 1


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="paragent", description="Run agents in parallel, from one laptop to a cluster."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(subparsers)
    options = parser.parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    if str(Path.cwd()) not in sys.path[:1]:
        # Where `--agent module:Class` and the like are; they win over installed packages of their name, as with `python -m`.
        sys.path.insert(0, str(Path.cwd()))
    try:
        status = int(options.run(options))
        sys.stdout.flush()
    except (Interrupted, KeyboardInterrupt) as interruption:
        return _told(str(interruption) or "interrupted", 130)
    except ParagentError as error:
        return _told(str(error), 2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:  # whoever read the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        return 1
    except (
        OSError
    ) as error:  # what the machine refuses: a full disk, a folder that may not be written, a wait that ended
        return _told(str(error) or type(error).__name__, 1)
    return status


def _told(problem: str, status: int) -> int:
    print(f"paragent: {problem}", file=sys.stderr)
    return status


class _Version(argparse.Action):
    """Shows the version, which is looked up only then: that takes longer than to read the command line."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"paragent {version('paragent')}")
        parser.exit()
