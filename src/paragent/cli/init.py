"""`paragent init`: make a small project with an environment, an agent, tasks, settings and a test."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from paragent.cli.options import add_command
from paragent.cli.view import check_installed
from paragent.errors import ConfigError, MissingExtra, UsageError

if TYPE_CHECKING:
    import argparse

    from paragent.cli.options import Subparsers

__all__ = ["add"]

_TEMPLATE = Path(__file__).parent / "project"
_NAME, _MODULE = "my-project", "my_project"
"""The names in the files of the template, which the names of the new project replace."""
_HIDDEN = {"gitignore": ".gitignore", "env.example": ".env.example"}
"""Files that are not hidden in the template, where they would have an effect."""
_CONTENTS = {
    "my_project/environment.py": "the tools of the agent, and the score of an answer",
    "my_project/agent.py": "the agent: asks the model and calls the tools",
    "tasks.jsonl": "the tasks",
    "rollout.toml": "the settings of the run",
    "tests/test_my_project.py": "the tests",
    "README.md": "what to do with them",
}
"""The files that the command names."""


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "init",
        "make a small project: an environment, an agent, tasks, a test",
        "Make a folder with a small project that runs at once, without an API key: an environment with a tool, an agent, "
        "tasks, a settings file and a test.",
    )
    folder = "the folder to make; its last part is the name of the project"
    parser.add_argument("path", type=Path, metavar="FOLDER", help=folder)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the project and print what to do next."""
    folder = Path(os.path.abspath(options.path))  # noqa: PTH100 - `resolve` would follow links, which changes the name
    module = _module_name(folder.name)
    _check_empty(folder, options.path)
    for source in sorted(_TEMPLATE.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            relative = _renamed(str(source.relative_to(_TEMPLATE)), folder.name, module)
            target = folder / _HIDDEN.get(relative, relative)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_renamed(source.read_text(encoding="utf-8"), folder.name, module), encoding="utf-8")
    _print_next(options.path, folder.name, module)
    return 0


def _renamed(text: str, name: str, module: str) -> str:
    return text.replace(_MODULE, module).replace(_NAME, name)


def _module_name(name: str) -> str:
    """Return the name of the Python package of a project.

    Raises:
        ConfigError: the name of the project is malformed, or Python already has a module of that name.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_.][A-Za-z0-9]+)*", name):
        raise ConfigError(
            f"{name!r} cannot be the name of a project: use letters, digits and single hyphens, and begin with a letter, "
            f"for example {_NAME}"
        )
    module = re.sub(r"[-.]", "_", name).lower()
    problem = ""
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        problem = "Python itself has that name"
    elif module == "tests":
        problem = "the folder of the tests has that name"
    else:
        elsewhere = [entry for entry in sys.path if entry not in {"", str(Path.cwd())}]
        if PathFinder.find_spec(module, elsewhere) is not None:
            problem = "an installed package has that name"
    if problem:
        raise ConfigError(
            f"the package of the project {name!r} would be {module!r}, but {problem}: choose another name"
        )
    return module


def _check_empty(folder: Path, given: Path) -> None:
    """Check that the folder does not exist, or is empty.

    Raises:
        ConfigError: it contains files, or it is a file.
    """
    if folder.is_dir():
        if any(folder.iterdir()):
            raise ConfigError(f"the folder {given} is not empty: choose another name, or an empty folder")
    elif folder.exists() or folder.is_symlink():
        raise ConfigError(f"{given} exists and is not a folder: choose another name")


def _print_next(path: Path, name: str, module: str) -> None:
    from paragent.cli.tables import console

    out = console()
    files = {_renamed(file, name, module): contents for file, contents in _CONTENTS.items()}
    commands = {
        "paragent rollout --config rollout.toml": "run all tasks; needs no API key",
        "paragent view": f"look at the results in a browser{_missing_view()}",
        "pip install pytest && pytest": "run the tests",
        "paragent docs howto/own_environment": "read how an environment works",
    }
    width = max(map(len, [*files, *commands]))
    out.print(f"Created the project {name}:", markup=False, soft_wrap=True)
    for file, contents in files.items():
        out.print(f"  {file:<{width}}   {contents}", markup=False, soft_wrap=True)
    out.print("\nNext:")
    if path != Path():
        out.print(f"  cd {shlex.quote(str(path))}", markup=False, soft_wrap=True)
    for command, purpose in commands.items():
        out.print(f"  {command:<{width}}   {purpose}", markup=False, soft_wrap=True)


def _missing_view() -> str:
    """Return the command that installs the packages of `paragent view`, to be put after its purpose; empty if they are there."""
    try:
        check_installed()
    except UsageError as error:  # the other one: the pages of a clone are not built
        return f"; needs: {error.command}" if isinstance(error, MissingExtra) else ""
    return ""
