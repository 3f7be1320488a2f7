"""Writes the pages of the reference that are made from the program: the command line, and the settings of rollouts.

`python docs/make_reference.py` writes them; with `--check` it only reports whether they are up to date. `make docs` writes them,
and a test checks them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from paragent.cli import make_parser
from paragent.rollout.config import all_settings

_FOLDER = Path(__file__).parent / "reference"
_SECTIONS = {
    "data": "Tasks",
    "agent": "Agent",
    "model": "Model",
    "environment": "Environment and score",
    "machines": "Machines",
    "run": "Run",
}
_CLI_INTRODUCTION = """# Command line

All commands of `paragent` and their flags, made from the program. `paragent COMMAND --help` prints the same. The
settings of `paragent rollout` are on [a page of their own](settings.md).

Exit statuses: 0 for success, 1 for an error, 2 for wrong usage, 130 after Ctrl-C. `paragent rollout` ends with 0 only if
every rollout has a score; [the guide](../guide/rollouts.md#results) has the details.
"""
_SETTINGS_INTRODUCTION = """# Settings of rollouts

All settings of `paragent rollout`, made from the program. Each setting is a flag, an environment variable, a key of the
`--config` file and a keyword of [`RolloutConfig`](rollouts.md). Flags have priority over variables, variables over the file.
A flag that takes no value has the opposite `--no-...`. [The guide](../guide/rollouts.md) explains how they work together.

The name of the variable is `PARAGENT_` and the name of the flag in capitals, with `_` for `-`: `--num-rollouts` is
`PARAGENT_NUM_ROLLOUTS`, and `num_rollouts` in a file. `--cache` has no variable, because `PARAGENT_CACHE` is the folder of
all caches.
"""


def pages() -> dict[Path, str]:
    """Return the generated pages by path."""
    os.environ["COLUMNS"] = "96"
    return {_FOLDER / "cli.md": _cli_page(), _FOLDER / "settings.md": _settings_page()}


def _cli_page() -> str:
    parser = make_parser()
    lines = [_CLI_INTRODUCTION, "| command | purpose |", "|---|---|"]
    commands = list(_subcommands(parser))
    for command, summary in commands:
        lines.append(f"| [`{command.prog}`](#{_anchor(command.prog)}) | {_escape(summary)} |")
    for command, _ in commands:
        lines += ["", *_command(command, 2)]
    return "\n".join(lines) + "\n"


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield the parsers of the commands of a parser, each with its line in the help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                if name in summaries:  # not an alias
                    yield command, summaries[name]


def _command(parser: argparse.ArgumentParser, level: int) -> list[str]:
    lines = [f"{'#' * level} {parser.prog}", "", *_paragraphs(parser.description or "")]
    usage = re.sub(r"^ {7}", "", parser.format_usage().removeprefix("usage: "), flags=re.MULTILINE).strip()
    if parser.prog == "paragent rollout":
        usage = "paragent rollout [--flag VALUE ...]"
    lines += ["```text", usage, "```", ""]
    rows = [row for action in parser._actions if (row := _row(parser, action))]
    if rows:
        lines += ["| argument | meaning |", "|---|---|", *rows, ""]
    if parser.prog == "paragent rollout":
        lines += ["All other flags are [settings of rollouts](settings.md).", ""]
    for command, _ in _subcommands(parser):
        lines += _command(command, min(level + 1, 4))
    return lines


def _paragraphs(description: str) -> Iterator[str]:
    """Yield the lines of a description; indented paragraphs are commands, which stay as they are."""
    for paragraph in description.split("\n\n"):
        if paragraph.startswith(" "):
            yield from ("```text", textwrap.dedent(paragraph), "```", "")
        else:
            yield from (_escape(_sentence(paragraph)), "")


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the row of an argument; empty if it has none."""
    hidden = isinstance(action, argparse._SubParsersAction | argparse._HelpAction) or action.help == argparse.SUPPRESS
    if hidden or (parser.prog == "paragent rollout" and action.dest in {setting.name for setting in all_settings()}):
        return ""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    names = action.option_strings
    if isinstance(action, argparse.BooleanOptionalAction):
        names = [name for name in names if not name.startswith("--no-")]
    shown = ", ".join(names) + (f" {value}" if names and action.nargs != 0 else "") if names else value
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return f"| `{shown}` | {_escape(text)} |"


def _settings_page() -> str:
    lines = [_SETTINGS_INTRODUCTION]
    for section, title in _SECTIONS.items():
        lines += [f"## {title}", "", f"In Python: the fields of `config.{section}`.", ""]
        lines += ["| flag | field | default | meaning |", "|---|---|---|---|"]
        for setting in all_settings():
            if setting.section != section:
                continue
            value = (
                ""
                if setting.kind is bool
                else f" {setting.metavar or {int: 'N', float: 'NUMBER'}.get(setting.kind, 'NAME')}"
            )
            default = "" if setting.default in (None, "", False) else f"`{setting.default}`"
            lines.append(
                f"| `{setting.flag}{value}` | `{setting.field}` | {default} | {_escape(_sentence(setting.help))} |"
            )
        lines.append("")
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text else ""


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _escape(text: str) -> str:
    """Return a text for a cell of a table: flags and placeholders must not become markup."""
    text = re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<![`\w-])(--[a-z][\w-]*)", r"`\1`", text)


def main() -> int:
    """Write the pages, or check them; return the exit status."""
    old = {path for path, text in pages().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv[1:]:
        for path in sorted(old):
            print(f"{path.name} is not up to date: run `make docs`", file=sys.stderr)
        return int(bool(old))
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
