"""`paragent osworld`: what of OSWorld's task files is covered here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from paragent.envs.osworld.coverage import Coverage, TaskNeeds

__all__ = ["add"]

_DESCRIPTION = """Read OSWorld's task files and say which of their tasks can be set up and scored here, which need an account
or a proxy, and what the rest needs. Nothing is started. The exit status is 0 if every task that needs neither account nor
proxy is covered, 1 if one is not or the file cannot be read."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = subparsers.add_parser("osworld", help="say which of OSWorld's tasks can be played and scored here")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = commands.add_parser("check", help="say what is covered and what is missing", description=_DESCRIPTION)
    check.add_argument(
        "--data", required=True, type=Path, help="a task file, a list of tasks, or the index beside its `examples`"
    )
    check.add_argument("--json", action="store_true", help="print everything as JSON, with the needs of each task")
    check.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from paragent.envs.osworld.coverage import coverage_of
    from paragent.envs.osworld.task_files import read_tasks

    coverage = coverage_of(read_tasks(options.data))
    if options.json:
        print(json.dumps(_as_json(coverage), indent=2))
    else:
        _show(coverage)
    return int(any(task.missing for task in coverage.tasks if not task.account and not task.proxy))


def _counts(tasks: list[TaskNeeds]) -> dict[str, int]:
    """Count the tasks; each is in one of the columns after the first."""
    return {
        "tasks": len(tasks),
        "covered": sum(task.covered for task in tasks),
        "proxy": sum(task.proxy and not task.missing and not task.account for task in tasks),
        "account": sum(bool(task.account) and not task.missing for task in tasks),
        "missing": sum(bool(task.missing) for task in tasks),
    }


def _by_domain(coverage: Coverage) -> dict[str, list[TaskNeeds]]:
    domains: dict[str, list[TaskNeeds]] = {}
    for task in coverage.tasks:
        domains.setdefault(task.domain, []).append(task)
    return domains


def _as_json(coverage: Coverage) -> dict[str, Any]:
    return {
        "total": _counts(list(coverage.tasks)),
        "domains": {domain: _counts(tasks) for domain, tasks in _by_domain(coverage).items()},
        "needs": [dataclasses.asdict(need) for need in coverage.needs()],
        "tasks": [dataclasses.asdict(task) | {"covered": task.covered} for task in coverage.tasks],
    }


def _show(coverage: Coverage) -> None:
    from rich.markup import escape

    from paragent.cli.tables import console, plain_table

    table = plain_table(
        "what can be set up and scored",
        "domain",
        "tasks",
        "covered",
        "but for a proxy",
        "but for an account",
        "missing",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for domain, tasks in _by_domain(coverage).items():
        table.add_row(escape(domain) or "-", *(str(count) for count in _counts(tasks).values()))
    table.add_section()
    table.add_row("all", *(str(count) for count in _counts(list(coverage.tasks)).values()))
    shown = console()
    shown.print(table)
    needs = coverage.needs()
    if not needs:
        return
    table = plain_table("what is not here", "tasks", "unlocks", "what")
    for need in needs:
        table.add_row(str(need.tasks), str(need.unlocks), escape(need.what))
    shown.print(table)
    shown.print("tasks: how many need it; unlocks: how many need nothing else.")
