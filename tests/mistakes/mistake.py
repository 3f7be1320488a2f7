"""`Mistake`: one row of the table of mistakes, and how it is made for real."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paragent.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

__all__ = ["Mistake", "Outcome", "make"]

TASKS = '{"id": "a", "question": "What is 2 + 3?", "answer": "5"}\n{"id": "b", "question": "What is 2 * 3?", "answer": "6"}\n'
"""The file tasks.jsonl in the folder of every mistake."""
HIDING = Path(__file__).parent / "hiding"
"""A folder with a `sitecustomize` that hides the packages named by `HIDDEN_PACKAGES`."""
_KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "JAVA_HOME")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake of a new user, and what paragent says about it.

    It is made in an empty folder with the file tasks.jsonl. `<name>` in commands, programs and variables is replaced by what
    the context manager of `given` yields under this name.
    """

    title: str
    command: str = ""
    """A command line; it runs in this process, unless packages or programs are missing."""
    program: str = ""
    """Instead of a command: a Python program, which runs in its own process."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    given: Callable[[Path], AbstractContextManager[Mapping[str, str]]] | None = None
    """Returns what exists besides the files, such as an endpoint; its argument is the folder."""
    without: tuple[str, ...] = ()
    """Python packages that are not installed."""
    without_programs: bool = False
    """Whether PATH has no programs but those of the Python environment."""
    shell: str = ""
    """A shell command in which `$PARAGENT` is the command, for surroundings that need one."""
    status: int = 2
    says: tuple[str, ...]
    """Words of the message: what is wrong, and what to do."""
    lists_names: bool = False
    """Whether the message may be longer, because it lists names."""
    waits: bool = False
    """Whether it takes seconds, because something is tried again."""

    @property
    def in_own_process(self) -> bool:
        """Whether it needs a process of its own."""
        return bool(self.program or self.without or self.without_programs or self.shell)


@dataclass(frozen=True)
class Outcome:
    """What a command or a program did."""

    status: int
    output: str
    errors: str

    @property
    def message(self) -> str:
        """Of a command, the lines from the first that begins with `paragent` to the command that continues the run; of a
        program, the exception."""
        lines = self.errors.splitlines()
        if any(line.startswith("Traceback") for line in lines):  # of a program
            last = max(number for number, line in enumerate(lines) if line.startswith("  "))
            return "\n".join(lines[last + 1 :])
        lines = list(itertools.dropwhile(lambda line: not line.startswith("paragent"), lines))
        return "\n".join(itertools.takewhile(lambda line: not line.startswith("To continue"), lines))


def make(mistake: Mistake, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Outcome:
    """Make a mistake in a folder and return what happened."""
    for name, content in {"tasks.jsonl": TASKS, **mistake.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    patch.chdir(folder)
    for name in _KEYS:
        patch.delenv(name, raising=False)
    with mistake.given(folder) if mistake.given else contextlib.nullcontext({}) as values:
        for name, value in mistake.variables.items():
            patch.setenv(name, _filled(value, values))
        if mistake.program:
            (folder / "program.py").write_text(_filled(mistake.program, values))
            return _run([sys.executable, "program.py"], mistake)
        words = shlex.split(_filled(mistake.command, values))
        assert words[0] == "paragent", words
        if mistake.in_own_process:
            command = [sys.executable, "-m", *words]
            return _run(
                ["sh", "-c", mistake.shell.replace("$PARAGENT", shlex.join(command))] if mistake.shell else command,
                mistake,
            )
        with _own_modules(folder, patch):
            return _run_here(words[1:], capsys)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text


def _run(command: list[str], mistake: Mistake) -> Outcome:
    variables = {**os.environ, "HIDDEN_PACKAGES": ",".join(mistake.without)}
    if mistake.without:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HIDING), os.environ.get("PYTHONPATH")]))
    if mistake.without_programs:
        variables["PATH"] = str(Path(sys.executable).parent)
    done = subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def _run_here(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Outcome:
    capsys.readouterr()
    try:
        status = main(arguments)
    except SystemExit as ended:  # argparse
        status = int(ended.code or 0)
    captured = capsys.readouterr()
    return Outcome(status, captured.out, captured.err)


@contextlib.contextmanager
def _own_modules(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules of the folder afterwards: the modules of two mistakes may have the same name."""
    patch.setattr(sys, "path", sys.path.copy())
    patch.setattr(sys, "dont_write_bytecode", True)
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(folder)):
                del sys.modules[name]
