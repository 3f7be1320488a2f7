"""Settings of a program that is the agent: parsed from `--agent`, checked before the run, sent to workers."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.file_errors import no_file
from paragent.errors import ConfigError, MissingProgram
from paragent.rollout.tables import stored_at
from paragent.subprocesses.installations import hidden_entries, is_broad, own_python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.rollout.config import RolloutConfig

__all__ = [
    "COMMAND_PREFIX",
    "SANDBOX_ADVICE",
    "SANDBOX_USER",
    "ProgramSettings",
    "check_location",
    "is_command",
    "program_settings",
    "runs_in_worker",
]

COMMAND_PREFIX = "cmd:"
_SCRIPTS = frozenset({".js", ".mjs", ".py", ".rb", ".sh", ".ts"})
"""Suffixes of the file that an interpreter executes, such as `python my_agent.py`."""
SANDBOX_USER = "the sandbox of the agent"
SANDBOX_ADVICE = (
    "install the package `bubblewrap` (0.8 or later) on a kernel that allows user namespaces, or use --agent-in host to run "
    "the agent without protection"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """A program that is the agent of each rollout."""

    command: tuple[str, ...]
    place: str
    """`sandbox`, `host` or `machine`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Additional variables."""
    network: bool = False
    """Whether it has the network of the host, in the sandbox."""
    folder: str = ""
    """The folder in which the run was started. The program can read it, except for hidden files."""
    python_path: tuple[str, ...] = ()
    """The folders of PYTHONPATH."""
    files: tuple[str, ...] = ()
    """Words of the command that are files of this host, which are copied to the machine."""
    hidden: tuple[str, ...] = ()
    """Files and folders that the sandbox hides: the benchmark, which has the expected answers, the results and the cache, which
    have other rollouts, and the file of MCP servers, which may have keys."""


def is_command(location: str | None) -> bool:
    """Return whether a value of `--agent` is a command."""
    return location is not None and location.startswith(COMMAND_PREFIX)


def check_location(location: str) -> None:
    """Check the form of a value of `--agent` that is not a command, before it is imported: importing a script would run it.

    Raises:
        ConfigError: it does not name a class or a function of a module.
    """
    module, _, name = location.rpartition(":" if ":" in location else ".")
    if not all(part.isidentifier() for part in f"{module}.{name}".split(".")) or Path(location).is_file():
        raise ConfigError(
            f"--agent: {location!r} is not of the form 'package.module:Name'; a program begins with cmd: as in "
            f"--agent 'cmd: {location if ' ' in location else 'python3 my_agent.py'}'"
        )


def runs_in_worker(config: RolloutConfig) -> bool:
    """Return whether the agent runs in the worker process, as classes and, by default, functions do."""
    return not is_command(config.agent.location) and config.agent.place in {None, "worker"}


def program_settings(config: RolloutConfig) -> ProgramSettings | None:
    """Return the settings of the program that is the agent; None if the agent runs in the worker.

    Raises:
        ConfigError: the command is empty, its program does not exist, or it cannot run where `--agent-in` says.
        MissingProgram: the sandbox is not available.
    """
    agent = config.agent
    if runs_in_worker(config):
        if agent.environment or agent.network != "none":
            raise ConfigError(
                "--agent-env and --agent-network are for agents in a process of their own: add --agent-in"
            )
        return None
    place = agent.place or "sandbox"
    if place == "worker":
        raise ConfigError("--agent-in worker is for classes and functions: programs run in a process of their own")
    folder = Path.cwd()
    command = _command(config, folder, place)
    if place == "sandbox":
        _check_sandbox(folder, command)
    paths = [config.run.output_dir, *(stored_at(config.data.path) if config.data.path else [])]
    paths += [path for path in (agent.mcp_config, config.model.cache_dir) if path is not None]
    hidden = tuple(str(path.resolve()) for path in paths)
    python_path = _python_path(folder)
    for shown in (str(folder), *python_path) if place == "sandbox" else ():
        hidden_entries(shown, hidden)  # now, because programs could not be started later
    files = [word for word in command[1:] if Path(word).is_relative_to(folder)] if place == "machine" else []
    return ProgramSettings(
        command=command,
        files=tuple(dict.fromkeys(files)),
        place=place,
        environment=dict(agent.environment),
        network=agent.network == "host",
        folder=str(folder),
        python_path=python_path,
        hidden=hidden,
    )


def _command(config: RolloutConfig, folder: Path, place: str) -> tuple[str, ...]:
    """Return the words of the command. The program, and files of the current folder, have absolute paths."""
    location = config.agent.location
    if not is_command(location):
        if location is None:
            raise ConfigError("--agent-in is for your own agent: add --agent, or remove it")
        if place == "machine":
            raise ConfigError("--agent-in machine is for commands: --agent 'cmd: PROGRAM ...'")
        return (own_python(), "-m", "paragent.rollout.function_main", location)
    assert location is not None
    try:
        words = shlex.split(location.removeprefix(COMMAND_PREFIX))
    except ValueError as error:
        raise ConfigError(f"--agent {location!r}: the command cannot be split into words: {error}") from None
    if not words:
        raise ConfigError("--agent: the command is empty; for example --agent 'cmd: python my_agent.py'")
    if place == "machine":
        return (words[0], *(_located(word, folder) for word in words[1:]))  # the program is one of the machine
    program = shutil.which(words[0])
    if program is None:
        raise ConfigError(
            f"--agent: there is no program {words[0]!r}: it is neither in the folders of PATH nor an executable file. Install "
            "it, activate its environment, or give its path"
        )
    script = Path(words[1]) if len(words) > 1 else None
    if script is not None and script.suffix in _SCRIPTS and not (folder / script).exists():
        raise ConfigError(f"--agent: {no_file(script)}")
    return (os.path.normpath(folder / program), *(_located(word, folder) for word in words[1:]))


def _python_path(folder: Path) -> tuple[str, ...]:
    given = [str(folder / path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return tuple(path for path in given if not is_broad(path))


def _located(word: str, folder: Path) -> str:
    """Return the absolute path of a file in the current folder; other words are returned unchanged.

    A word without a slash that names a folder may be something else, such as a module of Python.
    """
    path = folder / word
    try:
        found = path.is_file() or ("/" in word and path.exists())
    except (OSError, ValueError):
        found = False
    return str(path) if found else word


def _check_sandbox(folder: Path, command: Sequence[str]) -> None:
    if shutil.which("bwrap") is None:
        raise MissingProgram(SANDBOX_USER, "bubblewrap (bwrap) is not installed", SANDBOX_ADVICE)
    if is_broad(str(folder)):
        raise ConfigError(
            f"the agent in the sandbox can read the current folder, and {folder} contains much else, such as home folders: "
            "start the run in the folder of the agent, or use --agent-in host"
        )
    for path in [folder, *map(Path, command)]:
        if os.geteuid() == 0 and path.is_absolute() and path.is_relative_to(folder) and not _others_can_read(path):
            raise ConfigError(
                f"root runs agents in the sandbox as another user, which cannot read {path}: `chmod -R o+rX {folder}`, or use "
                "--agent-in host"
            )


def _others_can_read(path: Path) -> bool:
    mode = path.stat().st_mode
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return mode & needed == needed
