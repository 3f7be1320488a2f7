"""`paragent completion`: the script that completes commands, flags and values in a shell.

The script runs `paragent` at each press of the TAB key, so that it knows the plug-ins and runs that exist at that time. The
package argcomplete asks the parsers; this module adds the values that parsers do not know.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import Registry, import_object
from paragent.cli.options import add_command, run_folder
from paragent.errors import ParagentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paragent.cli.options import Subparsers

__all__ = ["add", "complete_if_requested"]

_SHELLS = {
    "bash": "echo 'eval \"$(paragent completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'autoload -U compinit && compinit; eval \"$(paragent completion zsh)\"' >> ~/.zshrc",
    "fish": "mkdir -p ~/.config/fish/completions && paragent completion fish > ~/.config/fish/completions/paragent.fish",
}
"""The shells, and the command that installs the script for all new ones."""
_REGISTRIES = {
    "engine": "paragent.engines:ENGINES",
    "format": "paragent.store.formats:FORMATS",
    "metric": "paragent.scorers:SCORERS",
    "mode": "paragent.envs:ENVIRONMENTS",
    "model": "paragent.models.base:MODELS",
    "provider_name": "paragent.machines.providers:PROVIDERS",
}
"""Settings whose values are names of a registry."""
_FOLDERS = {"DIR"}
_FILES = {"FILE", "PATH", "IMAGE", "RUN"}
"""Names of arguments, as the help shows them, that are files or folders."""
_MOST_TASKS = 1000
"""Ids of tasks that are read from a run; nobody chooses from a longer list."""


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    commands = "\n".join(f"  {shell}:\n    {command}" for shell, command in _SHELLS.items())
    parser = add_command(
        subparsers,
        "completion",
        "print a script that completes commands, flags and values in your shell",
        "Print a script that completes commands, flags and values with the TAB key: names of engines, modes, formats and\n"
        "other plug-ins, runs in ./results, and files. To have it in all new shells, run once:\n\n"
        f"{commands}\n\n"
        'For this shell only: eval "$(paragent completion bash)"; the same for zsh, after `autoload -U compinit && compinit`;\n'
        "in fish: paragent completion fish | source",
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=tuple(_SHELLS), help="the shell")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["paragent"], shell=options.shell, use_defaults=False).strip())
    return 0


def complete_if_requested(parser: argparse.ArgumentParser) -> None:
    """Print the completions and end the process, if the script of a shell has started it; otherwise do nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    from argcomplete.finders import CompletionFinder

    class Finder(CompletionFinder):
        """Suggests flags only where nothing else fits, or after a dash."""

        def collect_completions(
            self, active_parsers: list[argparse.ArgumentParser], parsed_args: argparse.Namespace, cword_prefix: str
        ) -> list[str]:
            found = super().collect_completions(active_parsers, parsed_args, cword_prefix)
            return [one for one in found if not one.startswith("-")] or found

    completer: Any = _values  # any function with these arguments is a completer
    Finder()(parser, always_complete_options="long", default_completer=completer)


def _values(*, prefix: str, action: argparse.Action, parsed_args: argparse.Namespace, **_: Any) -> Iterable[str]:
    """Return the values of an argument that has no `choices`."""
    from paragent.rollout.config import all_settings

    names: list[str] = []
    if action.dest in _REGISTRIES:
        registry: Registry = import_object(_REGISTRIES[action.dest])
        names += registry.names()
    names += next((setting.values for setting in all_settings() if setting.name == action.dest), ())
    if action.metavar == "RUN":
        from paragent.store import find_runs

        names += [run.name for run in find_runs(getattr(parsed_args, "output_dir", None) or Path("results"))]
    elif action.metavar == "TASK":
        names += _tasks(getattr(parsed_args, "path", None))
    elif action.metavar == "IMAGE" or action.dest == "path_to_vm":
        from paragent.machines.images import images

        names += [image.name for image in images() if image.part_of is None]
    elif action.dest == "data":
        names.append("sample")
    elif action.dest == "topic":
        from paragent.cli.docs import page_names

        names += page_names()
    elif action.dest == "names":
        from paragent.cli.doctor import purpose_names

        names += purpose_names()
    if action.metavar in _FILES | _FOLDERS:
        names += _paths(prefix, only_folders=action.metavar in _FOLDERS)
    return names


def _tasks(run: Path | None) -> list[str]:
    from paragent.store import JOURNAL_FILE, Journal

    if run is None:
        return []
    try:
        with Journal(run_folder(run) / JOURNAL_FILE, read_only=True) as journal:
            return [task.id for task in itertools.islice(journal.tasks(), _MOST_TASKS)]
    except ParagentError:  # there is no such run, or it is damaged
        return []


def _paths(prefix: str, *, only_folders: bool) -> Iterator[str]:
    """Yield files, and folders with a slash at the end, that begin with `prefix`."""
    name = prefix.rpartition("/")[2]
    start = prefix.removesuffix(name)
    try:
        entries = sorted(Path(start or ".").expanduser().iterdir())
    except (OSError, RuntimeError):  # there is no such folder or user
        return
    for entry in entries:
        if entry.name.startswith(name) and (name or not entry.name.startswith(".")):
            if entry.is_dir():
                yield f"{start}{entry.name}/"
            elif not only_folders:
                yield f"{start}{entry.name}"
