"""`paragent ctl`: show and change a run while it is active."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.cli.options import add_command, run_folder
from paragent.cli.tables import console, escape, number, plain_table, score_text
from paragent.errors import RunNotLive

if TYPE_CHECKING:
    import argparse

    from paragent.cli.options import Subparsers
    from paragent.rollout.live_run import LiveRun

__all__ = ["add"]

_COMMANDS = {
    "status": ("show what the run is doing; a run without an active session is shown from its journal", None, ""),
    "pause": ("start no new rollouts; those under way finish", None, ""),
    "resume": ("continue after a pause", None, ""),
    "cancel": ("cancel a rollout, pending or running", "TASK", "id of the task; TASK#2 is its second attempt"),
    "retry": ("execute a rollout again that has ended", "TASK", "id of the task; TASK#2 is its second attempt"),
    "set": ("change a setting", "SETTING", "num-rollouts=N: how many rollouts may be under way"),
    "retire": ("replace a machine, now or when its lease ends", "MACHINE", "id of the machine, as `status` shows it"),
    "stop": ("end the session; the command that started the run continues it", None, ""),
}
"""For each command: its help, and the name and the help of its argument."""
_ROWS = 20
"""Rollouts and machines that `status` lists."""


def add(subparsers: Subparsers) -> None:
    """Add the command and its subcommands."""
    parser = add_command(
        subparsers,
        "ctl",
        "show, pause, resume or stop an active run; cancel and retry its rollouts",
        "Show and change a run while `paragent rollout` executes it, from the host on which it was started and by the same user. "
        "The exit status is 0 if the command was executed, 2 if it cannot be, for example because the run is not active.",
    )
    parser.add_argument("path", type=Path, metavar="RUN", help="run directory, or its name in --output-dir")
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        default=Path("results"),
        help="folder of run directories (default: results)",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    for name, (summary, metavar, about) in _COMMANDS.items():
        command = add_command(commands, name, summary)
        if metavar:
            command.add_argument("argument", metavar=metavar, help=about)
        if name == "stop":
            command.add_argument(
                "--cancel",
                action="store_true",
                help="cancel the rollouts under way, which stay pending (default: they finish)",
            )
        command.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from paragent.rollout.control import ControlClient

    path = run_folder(options.path, options.output_dir)
    if options.command == "status":
        return _status(path, as_json=options.json)
    argument = getattr(options, "argument", "cancel" if getattr(options, "cancel", False) else "")
    client = ControlClient(path)
    message = client.command(options.command, argument)
    if options.json:
        answer = {"run": path.name, "command": options.command, "argument": argument, "message": message}
        print(json.dumps(answer))
    else:
        print(f"{path.name}: {message}")
    return 0


def _status(path: Path, *, as_json: bool) -> int:
    from paragent.rollout.control import ControlClient, ended_run

    try:
        live = ControlClient(path).status()
    except RunNotLive as error:
        live = ended_run(path)
        if live.pending:
            live.note = str(error)
    if as_json:
        print(json.dumps(live.as_json()))
    else:
        _print(live)
    return 0


def _print(live: LiveRun) -> None:
    from paragent.cli.display import duration
    from paragent.rollout.budgets import described

    out = console()
    facts = plain_table(escape(live.run), "", "")
    facts.show_header = False
    facts.add_row("state", f"[bold]{live.state}[/]" + (f": {escape(live.note)}" if live.note else ""))
    failed = ((live.failed, "failed"), (live.cancelled, "cancelled"), (live.infrastructure_failures, "infrastructure"))
    extra = "".join(f", {count:,} {word}" for count, word in failed if count)
    facts.add_row(
        "rollouts", f"{live.done:,} of {live.total:,} done, {live.active:,} running, {live.pending:,} pending{extra}"
    )
    facts.add_row("score", score_text(live.mean_score, live.measured))
    if live.cut:
        facts.add_row("cut replies", f"{live.cut:,}")
    tokens = f"{number(live.prompt_tokens, ',')} / {number(live.completion_tokens, ',')}"
    facts.add_row("tokens in / out", tokens)
    facts.add_row("cost", number(live.cost, ",.4f"))
    for budget in live.budgets:
        facts.add_row("budget", described(budget))
    if live.num_rollouts:
        facts.add_row("num-rollouts", str(live.num_rollouts))
    if live.request_limit:
        facts.add_row("requests", f"{live.requests_in_flight} / {live.request_limit}")
    if live.machines:
        states = ", ".join(f"{count} {state}" for state, count in live.machine_states.items())
        facts.add_row("machines", states)
    left = "" if live.seconds_left is None else f", about {duration(live.seconds_left)} left"
    facts.add_row("time", f"{duration(live.seconds)}{left}")
    out.print(facts)
    if live.rollouts:
        out.print(_rollouts(live))
    if live.machines:
        out.print(_machines(live))


def _rollouts(live: LiveRun) -> Any:
    from paragent.cli.display import duration

    table = plain_table("", "rollout", "activity", "for", "work", "worker", "machine")
    for one in live.rollouts[:_ROWS]:
        texts = (one.label, one.activity, duration(one.since), duration(one.worked), one.worker, one.machine)
        table.add_row(*map(escape, texts))
    return table


def _machines(live: LiveRun) -> Any:
    from paragent.cli.display import duration

    table = plain_table("", "machine", "state", "for", "holder", "resets", "failure")
    for one in live.machines[:_ROWS]:
        texts = (one.name, one.state, duration(one.seconds), one.holder, str(one.resets), one.failure)
        table.add_row(*map(escape, texts))
    return table
