"""The command `paragent` and its subcommands."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.file_errors import os_problem
from paragent._internal.text import safe_streams
from paragent.cli import (
    agent_server,
    completion,
    control,
    demo,
    docs,
    doctor,
    env,
    init,
    osworld,
    pool,
    rollout,
    runs,
    training,
    view,
    vm,
)
from paragent.cli.completion import complete_if_requested
from paragent.cli.parser import CommandParser
from paragent.errors import Interrupted, ParagentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "make_parser"]

_COMMANDS = (
    demo,
    init,
    doctor,
    docs,
    rollout,
    control,
    runs,
    view,
    env,
    training,
    agent_server,
    pool,
    vm,
    osworld,
    completion,
)
"""Modules with a function `add(subparsers)`. It sets the default `run`: a function that returns the exit status."""

_EXAMPLES = """examples:
  paragent demo --view                                       see what it does, without a key
  paragent init my-project                                   make a project of your own
  paragent doctor                                            see what this machine can run
  paragent rollout --mode math --data sample --model demo    run a small benchmark, without a key
  paragent view                                              look at the results in a browser
  paragent agent-server --port 12010                         run remote agents of other programs on this host
  paragent docs                                              read the documentation, offline

Tasks and remote agents are written in Python; the tutorials begin with a few lines:
  paragent docs tutorials/tasks
  paragent docs tutorials/remote_agents

`paragent COMMAND --help` describes a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C.

    `paragent rollout` returns 0 only if every rollout has a score, and 1 if some failed or are pending. Control characters
    are removed from everything that is printed, including the output of agents and tasks.
    """
    with safe_streams():
        try:
            return _main(arguments)
        except Exception:  # noqa: BLE001 - a bug: show the traceback, without control characters
            traceback.print_exc()
            return 1


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; the reference of the commands is made from it."""
    parser = CommandParser(
        prog="paragent",
        description="Run agents in parallel, from one laptop to a cluster.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(subparsers)
    return parser


def _main(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    complete_if_requested(parser)
    options = parser.parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        folder = str(Path.cwd())
    except FileNotFoundError:
        return _print_error("the current folder was deleted; change to another one", 1)
    if folder not in sys.path[:1]:
        # For `--agent module:Class` and similar flags. Has priority over installed packages, as with `python -m`.
        sys.path.insert(0, folder)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
    except (Interrupted, KeyboardInterrupt) as interruption:
        return _print_error(str(interruption) or "interrupted", 130)
    except ParagentError as error:
        return _print_error(str(error), 2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python prints an error at exit
        return 1
    except OSError as error:  # a full disk, a folder without write permission, a connection that timed out
        return _print_error(os_problem(error), 1)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("paragent"):
            raise
        from paragent._installation import install_command

        missing = f"this command needs the package {error.name!r}, which is not installed"
        return _print_error(f"{missing}: {install_command()}", 2)
    return status


def _print_error(problem: str, status: int) -> int:
    print(f"paragent: {problem}", file=sys.stderr)
    return status


class _Version(argparse.Action):
    """Prints the version. It is looked up only here, because that takes longer than parsing the command line."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from paragent._internal.version import __version__

        print(f"paragent {__version__}")
        parser.exit()
