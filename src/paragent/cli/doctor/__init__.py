"""`paragent doctor`: what this host can do, what is missing, and the command that installs it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from paragent.cli.options import add_command
from paragent.errors import UnknownName

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from paragent.cli.doctor.host import Host
    from paragent.cli.doctor.purposes import Purpose, Readiness
    from paragent.cli.options import Subparsers

__all__ = ["add", "purpose_names"]

_DESCRIPTION = """Check what this host can do and print, for each purpose, whether it is ready, and otherwise one command that
installs what is missing. Programs are started once where their presence proves little: a worker process, a child process with an
agent, bubblewrap, KVM. It takes a few seconds and installs nothing. API keys are never printed. The exit status is 0 if tasks can
run on this host, whether or not optional parts are missing; with names, it is 0 only if all of them are ready."""

_INDENT = 27
"""Columns before what is wrong with a purpose."""


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers, "doctor", "check what this machine can run, and how to install what is missing", _DESCRIPTION
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="check only this, such as ray, osworld or rollouts (default: everything)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def purpose_names() -> list[str]:
    """Return the names that the command accepts: purposes and groups of them."""
    from paragent.cli.doctor.purposes import GROUPS, PURPOSES

    return list(dict.fromkeys([*GROUPS, *PURPOSES]))


def run(options: argparse.Namespace) -> int:
    """Run the probes and print what they found."""
    import json

    from paragent.cli.doctor.host import describe_host
    from paragent.cli.doctor.probes import run_probes
    from paragent.cli.doctor.purposes import CORE, judge, probes_of

    purposes = _chosen(options.names)
    findings = run_probes(probes_of(purposes))
    results = [judge(purpose, findings) for purpose in purposes]
    needed = [result for result in results if options.names or result.purpose.name == CORE]
    ready = all(result.ready for result in needed)
    host = describe_host()
    if options.json:
        print(json.dumps(_as_json(host, results, ready=ready), indent=2))
    else:
        _show(host, results, everything=not options.names)
    return 0 if ready else 1


def _chosen(names: Sequence[str]) -> list[Purpose]:
    """Return the purposes with these names, or in groups with these names; without names, all purposes.

    Raises:
        UnknownName: a name is neither.
    """
    from paragent.cli.doctor.purposes import PURPOSES

    for name in names:
        if name not in purpose_names():
            raise UnknownName("subject", name, purpose_names())
    groups = set(names) - PURPOSES.keys()
    return [one for one in PURPOSES.values() if not names or one.name in names or one.group in groups]


def _versions() -> dict[str, str]:
    import platform
    from importlib import metadata

    try:
        own = metadata.version("paragent")
    except metadata.PackageNotFoundError:
        own = "unknown"
    return {"paragent": own, "python": platform.python_version(), "executable": sys.executable}


def _show(host: Host, results: Sequence[Readiness], *, everything: bool) -> None:
    from paragent.cli.doctor.purposes import GROUPS
    from paragent.cli.tables import console

    out = console()
    if everything:
        versions = _versions()
        facts = [f"paragent {versions['paragent']}, Python {versions['python']} ({versions['executable']})"]
        for line in (*facts, *host.lines(), *(f"note: {note}" for note in host.notes())):
            out.print(line, markup=False)
    for group, title in GROUPS.items():
        chosen = [result for result in results if result.purpose.group == group]
        if chosen and everything:
            out.print(f"\n[bold]{title}[/]")
        for result in chosen:
            _show_one(out, result)
    if everything:
        out.print(f"\n{_conclusion(results)} In scripts use `paragent doctor NAME` or --json.", markup=False)


def _conclusion(results: Sequence[Readiness]) -> str:
    """Return what works on this host, in a sentence or two."""
    from paragent.cli.doctor.purposes import CORE

    ready = [result.purpose.name for result in results if result.ready]
    if CORE not in ready:
        return "Tasks cannot run on this host, and nothing works without them; see above what is wrong."
    rest = " The others are optional; see the fixes above." if len(ready) < len(results) else ""
    return f"Ready to use: {', '.join(ready)}.{rest}"


def _show_one(out: Console, result: Readiness) -> None:
    """Print a purpose: what works on its line; what is wrong and the command that helps on lines of their own."""
    import textwrap

    from rich.text import Text

    state, style = ("ready", "green") if result.ready else ("not ready", "yellow")
    line = Text(f"  {result.purpose.name:<13} ").append(f"{state:<9}", style).append(f"  {result.purpose.about}")
    working = [finding.detail for finding in (*result.needed, *result.useful) if finding.works and finding.detail]
    working += [f"with {result.chosen}"] if result.chosen else []
    if working and result.ready:
        line.append(f": {', '.join(dict.fromkeys(working))}", "dim")
    out.print(line, soft_wrap=True)
    problems = [(finding.detail, "") for finding in result.needed if not finding.works]
    if result.ready:
        problems = [(f"note: {finding.detail}", finding.cure) for finding in result.useful if not finding.works]
    for number, (problem, cure) in enumerate(problems, 1):
        wrapped = textwrap.wrap(problem, max(out.width - _INDENT, 40), break_on_hyphens=False, break_long_words=False)
        text = textwrap.indent("\n".join(wrapped), " " * _INDENT)
        out.print(Text(text, "dim" if result.ready else ""), soft_wrap=True)
        cure = result.cure if not result.ready and number == len(problems) else cure
        if cure:  # not wrapped, so that it can be copied
            out.print(Text(" " * _INDENT + "fix: ").append(cure, "bold"), soft_wrap=True)


def _as_json(host: Host, results: Sequence[Readiness], *, ready: bool) -> dict[str, Any]:
    from paragent.cli.doctor.cures import missing_packages, user_extras

    facts = asdict(host) | {"folder": str(host.folder), "cache": str(host.cache)}
    return {
        **_versions(),
        "ready": ready,
        "host": facts,
        "notes": host.notes(),
        "purposes": {result.purpose.name: _purpose_as_json(result) for result in results},
        "extras": {extra: {"missing": missing_packages(texts)} for extra, texts in sorted(user_extras().items())},
    }


def _purpose_as_json(result: Readiness) -> dict[str, Any]:
    findings = [(finding, True) for finding in result.needed] + [(finding, False) for finding in result.useful]
    return {
        "ready": result.ready,
        "group": result.purpose.group,
        "about": result.purpose.about,
        "findings": [
            {"subject": one.subject, "works": one.works, "needed": needed, "detail": one.detail}
            for one, needed in findings
        ],
        "with": result.chosen or None,
        "fix": result.cure or None,
    }
