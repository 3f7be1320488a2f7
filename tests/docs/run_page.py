"""Executes the code blocks of one page in the current folder: `python -m tests.docs.run_page PAGE`. See pages.py."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import io
import json
import linecache
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from paragent.testing import OpenAIServer, Script
from tests.children import BoundedPopen
from tests.docs.pages import EXECUTED, NOT_EXECUTED, PARSED, ROOT, Block, Page, read_page

COMMAND_SECONDS = 100
SERVER_SECONDS = 90
OTHER_PROGRAMS = {
    *("apt-get", "aws", "cd", "cp", "curl", "docker", "export", "git", "make", "mkdir", "pip", "pytest", "python"),
    *("qemu-img", "ray", "scp", "source", "spark-submit", "ssh", "sudo", "uv", "wget", "kubectl", "yarn"),
}
"""Programs that a page may show in a block that is only parsed."""


class Wrong(AssertionError):
    """A block does not do what the page says."""


def run_page(page: Page) -> None:
    """Execute all blocks. The names of Python blocks are those of a new module `__main__`, as in a notebook."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    names = vars(sys.modules["__main__"])
    printed = ""
    with contextlib.ExitStack() as stack, OpenAIServer(Script(**json.loads(page.endpoint))) as server:
        os.environ |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "test", "COLUMNS": "200"}
        for block in page.steps:
            try:
                printed = _run_block(block, names, printed, stack)
            except BaseException as problem:
                raise Wrong(f"{page.path}:{block.line}: {type(problem).__name__}: {problem}") from problem
        stack.close()


def _run_block(block: Block, names: dict[str, Any], printed: str, stack: contextlib.ExitStack) -> str:
    """Execute a block and return what it printed."""
    rules = block.instructions
    if block.language not in {"setup", *EXECUTED, *PARSED, *NOT_EXECUTED}:
        raise Wrong(
            f"a block of the language {block.language!r}; use one of {sorted(EXECUTED | PARSED | NOT_EXECUTED)}"
        )
    if block.language in PARSED:
        _parse(block)
    if block.file:
        path = Path(block.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.body)
        if path.suffix == ".py":
            compile(block.body, str(path), "exec", dont_inherit=True)
        return printed
    if "parse" in rules:
        if not rules["parse"]:
            raise Wrong("`test: parse` needs a reason")
        _check_only(block)
        return printed
    if block.language == "text" and block.title == "output":
        _compare(block.body, printed)
    if block.language in {"python", "setup"}:
        return _run_python(block, names)
    if block.language in {"bash", "console"}:
        return _run_commands(block, stack)
    return printed


def _parse(block: Block) -> None:
    if block.language == "toml":
        tomllib.loads(block.body)
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.body))
    elif block.language == "json":
        json.loads(block.body)
    else:
        for line in block.body.splitlines():
            json.loads(line)


def _run_python(block: Block, names: dict[str, Any]) -> str:
    file = f"<line {block.line}>"
    linecache.cache[file] = (len(block.body), None, block.body.splitlines(keepends=True), file)
    out = io.StringIO()
    expected = block.instructions.get("raises", "")
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(block.body, file, "exec", dont_inherit=True), names)
    except BaseException as error:
        if not expected or expected not in {cls.__name__ for cls in type(error).__mro__}:
            raise
        out.write(f"{type(error).__name__}: {error}")
    else:
        if expected:
            raise Wrong(f"the block raises no {expected}")
    print(out.getvalue(), end="")
    return out.getvalue()


def _commands(block: Block) -> list[str]:
    text = re.sub(r"\\\n\s*", "", block.body)
    lines = [line.strip() for line in text.splitlines()]
    if block.language == "console":
        return [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line and not line.startswith("#")]


def _run_commands(block: Block, stack: contextlib.ExitStack) -> str:
    rules = block.instructions
    printed = []
    for command in _commands(block):
        if _set_up(command):
            continue
        line = f"{_without_comment(command)} {rules['append']}" if "append" in rules else command
        if "background" in rules:
            stack.enter_context(_server(line, rules["background"]))
            continue
        if "interrupt" in rules:
            status, text = _interrupted(line, rules["interrupt"])
        else:
            done = subprocess.run(
                ["bash", "-c", line],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
            status, text = done.returncode, done.stdout
        print(f"$ {line}\n{text}", end="")
        if status != int(rules.get("status", 0)):
            raise Wrong(f"status {status} of {line}\n{text}")
        printed.append(text)
    if block.language == "console":
        shown = [line for line in block.body.splitlines() if line.strip() and not line.startswith(("$ ", "#"))]
        _compare("\n".join(shown), "".join(printed))
    return "".join(printed)


def _set_up(command: str) -> bool:
    """Handle commands that change the shell (cd, export), and check commands that install something; return whether it is one."""
    program, *words = shlex.split(_without_comment(command)) or [""]
    if program == "cd":
        os.chdir(words[0])
    elif program == "export":
        for word in words:
            name, _, value = word.partition("=")
            if not name.startswith(("OPENAI_", "ANTHROPIC_")):  # the endpoint of the test stays
                os.environ[name] = value
    elif program == "pip":
        known = set(importlib.metadata.metadata("paragent").get_all("Provides-Extra") or [])
        extras = {one for word in words for names in re.findall(r"\[(.*?)\]", word) for one in names.split(",")}
        if not extras <= known:
            raise Wrong(f"paragent has no extra {', '.join(sorted(extras - known))}")
    elif program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        if not set(words) <= targets:
            raise Wrong(f"the Makefile has no target {', '.join(sorted(set(words) - targets))}")
    else:
        return program in {"git", "apt-get", "sudo"}
    return True


def _interrupted(command: str, text: str) -> tuple[int, str]:
    """Run a command, interrupt it as Ctrl-C does when it has printed a line with `text`, and return its status and output."""
    lines: list[str] = []
    with BoundedPopen(
        ["bash", "-c", f"exec {command}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if text in line and not any(text in before for before in lines):
                process.send_signal(signal.SIGINT)
            lines.append(line)
    return process.returncode, "".join(lines)


@contextlib.contextmanager
def _server(command: str, text: str) -> Iterator[None]:
    """Run a server until the page ends."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    ready = threading.Event()
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if text in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        if not ready.wait(SERVER_SECONDS) or not any(text in line for line in lines):
            raise Wrong(f"the server did not print {text!r}: {command}\n{''.join(lines)}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SERVER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
        reader.join(SERVER_SECONDS)
        process.stdout.close()


def _check_only(block: Block) -> None:
    """Parse the commands of a block, or compile its code and execute its imports."""
    if block.language in {"python", "setup"}:
        tree = ast.parse(block.body)
        imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), "<imports>", "exec", dont_inherit=True), {})
        return
    for command in _commands(block):
        words = shlex.split(_without_comment(command))
        while words and ("=" in words[0] or words[0] == "sudo"):
            words = words[1:]
        if words and words[0] == "paragent":
            parse_command([word for word in words[1:] if word != "&"])
        elif words and words[0] not in OTHER_PROGRAMS:
            raise Wrong(f"unknown program {words[0]!r} in {command}")


def _without_comment(command: str) -> str:
    return re.sub(r"\s+# .*$", "", command)


def parse_command(arguments: list[str]) -> None:
    """Parse a command line of paragent without executing it.

    Raises:
        Wrong: a command or flag does not exist.
    """
    from paragent.cli import make_parser

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            make_parser().parse_args(arguments)
    except SystemExit as ended:
        raise Wrong(f"paragent {shlex.join(arguments)}: {complaint.getvalue()}") from ended


def _compare(shown: str, printed: str) -> None:
    """Check that each line of `shown` is in `printed`, where numbers may differ, and `...` stands for any text."""
    lines = {_normal(line) for line in printed.splitlines()}
    missing = [line for line in shown.splitlines() if line.strip() and not _is_in(_normal(line), lines)]
    if missing:
        raise Wrong("not in the output:\n" + "\n".join(missing) + "\nthe output:\n" + printed)


def _is_in(line: str, lines: set[str]) -> bool:
    if "..." not in line:
        return line in lines
    pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
    return any(pattern.fullmatch(one) for one in lines)


def _normal(line: str) -> str:
    """Replace what differs from run to run: numbers, ids, the widths of tables."""
    return re.sub(r"[\s─━│┃]+", " ", re.sub(r"\d+(?:[.,:]\d+)*", "N", line)).strip()


if __name__ == "__main__":
    run_page(read_page(Path(sys.argv[1])))
