"""`paragent osworld`: reports which of OSWorld's tasks get OSWorld's score, and why others do not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.cli.options import add_command

if TYPE_CHECKING:
    import argparse

    from paragent.cli.options import Subparsers
    from paragent.osworld.coverage import Coverage, TaskNeeds

__all__ = ["add"]

_DESCRIPTION = """Read OSWorld's task files and report for each task whether it gets the same score as in OSWorld, may get another
score, or cannot be scored, with the reasons. No machine is started. The exit status is 0 if every task that needs neither an
account nor a proxy can be scored, otherwise 1."""


def add(subparsers: Subparsers) -> None:
    """Add the commands."""
    parser = add_command(subparsers, "osworld", "check which tasks of OSWorld can be scored as in OSWorld")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = add_command(
        commands, "check", "report for each task: same score, differs, or cannot be scored", _DESCRIPTION
    )
    check.add_argument(
        "--data",
        required=True,
        type=Path,
        metavar="FILE",
        help="a task file, a list of tasks, or an index such as test_all.json beside the folder `examples`",
    )
    check.add_argument("--json", action="store_true", help="print everything as JSON")
    check.add_argument("--summary", action="store_true", help="print the totals only")
    check.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from paragent.osworld.coverage import coverage_of
    from paragent.osworld.formats import read_tasks

    coverage = coverage_of(read_tasks(options.data))
    if options.json:
        print(json.dumps(_as_json(coverage), indent=2))
    else:
        _show(coverage, each=not options.summary)
    return int(any(task.missing for task in coverage.tasks if not task.account and not task.proxy))


def _counts(tasks: list[TaskNeeds]) -> dict[str, int]:
    """Count the tasks by verdict, and the tasks that can be scored and need a proxy."""
    from paragent.osworld.coverage import CANNOT, DIFFERS, SAME

    counts = {verdict: sum(task.verdict == verdict for task in tasks) for verdict in (SAME, DIFFERS, CANNOT)}
    return {"tasks": len(tasks), **counts, "need a proxy": sum(task.proxy and task.verdict != CANNOT for task in tasks)}


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
        "tasks": [_task_as_json(task) for task in coverage.tasks],
    }


def _task_as_json(task: TaskNeeds) -> dict[str, Any]:
    judgement = {"covered": task.covered, "verdict": task.verdict, "reasons": list(task.reasons)}
    return dataclasses.asdict(task) | judgement


def _show(coverage: Coverage, *, each: bool) -> None:
    from paragent.cli.tables import console, escape, plain_table

    shown = console()
    if each:
        table = plain_table("tasks", "domain", "task", "score", "reasons")
        for task in coverage.tasks:
            table.add_row(escape(task.domain) or "-", escape(task.id), task.verdict, escape("; ".join(task.reasons)))
        shown.print(table)
    table = plain_table("scores compared with OSWorld's", "domain", *_counts([]))
    for column in table.columns[1:]:
        column.justify = "right"
    for domain, tasks in _by_domain(coverage).items():
        table.add_row(escape(domain) or "-", *(str(count) for count in _counts(tasks).values()))
    table.add_section()
    table.add_row("all", *(str(count) for count in _counts(list(coverage.tasks)).values()))
    shown.print(table)
    needs = coverage.needs()
    if not needs:
        return
    table = plain_table("missing requirements", "tasks", "unlocks", "requirement")
    for need in needs:
        table.add_row(str(need.tasks), str(need.unlocks), escape(need.what))
    shown.print(table)
    shown.print("tasks: number of tasks that need it; unlocks: number of tasks that need nothing else.")
