"""`paragent demo`, and its first part: a batch of tasks in parallel, some of which go wrong in every way there is."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.agents import AgentBase, ParallelizableAgent
from paragent.cli.demo_desktop import show_desktops
from paragent.config import RunConfig, usable_cores
from paragent.errors import UsageError
from paragent.messages import Msg
from paragent.runners import Runners
from paragent.tasks import Task, TaskStatus, record_usage

if TYPE_CHECKING:
    from rich.console import Console

    from paragent.tasks import TaskResponse

__all__ = ["add", "show_samples"]


_MODES = ("math", "py", "rag", "web")


def show_samples(console: Console) -> None:
    """Play the samples and show a table; what this machine lacks is said, and the rest is played."""
    from paragent.cli.tables import number, plain_table
    from paragent.rollout import run_parallel_rollout

    console.print(
        "\n[bold]Rollouts[/]: sample tasks of four environments. The model is `demo`, a hand-written policy: "
        "it is no LLM, so the scores say nothing but that everything works."
    )
    table = plain_table("", "environment", "tasks", "score", "turns", "tool calls", "time")
    table.title = None
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="paragent-demo-") as folder:
        for mode in _MODES:
            console.print(f"playing {mode} ...")
            try:
                summary = run_parallel_rollout(_config(mode, Path(folder)))
            except UsageError as problem:
                missing.append(f"{mode} is left out: {problem}")
                continue
            turns, calls = _effort(Path(folder), mode)
            table.add_row(
                mode, str(summary.tasks), number(summary.mean), str(turns), str(calls), f"{summary.seconds:.1f} s"
            )
    console.print(table)
    for sentence in missing:
        console.print(sentence, highlight=False, markup=False)
    console.print(
        "The same with a model: paragent rollout --mode math --data tasks.jsonl --model ...; docs/rollouts.md"
    )


def _config(mode: str, folder: Path) -> Any:
    from paragent.demo.samples import sample_options, sample_path
    from paragent.rollout import RolloutConfig

    options = {name: str(value) for name, value in sample_options(mode).items()}
    return RolloutConfig(
        mode=mode, data=sample_path(mode), model="demo", output_dir=folder, run_name=mode, env_option=options
    )


def _effort(folder: Path, mode: str) -> tuple[int, int]:
    from paragent.store import Journal

    with Journal(folder / mode / "journal.sqlite", read_only=True) as journal:
        [(turns, calls)] = journal.rows("SELECT sum(turns), sum(tool_calls) FROM plays WHERE decides = 1")
    return turns, calls


_COLOURS = {
    TaskStatus.SUCCEEDED: "green",
    TaskStatus.FAILED: "red",
    TaskStatus.TIMED_OUT: "yellow",
    TaskStatus.LOST: "magenta",
    TaskStatus.CANCELLED: "dim",
}
_TROUBLE = {7: "raise", 23: "hang", 41: "die"}
"""Which of every hundred tasks go wrong, and how."""


class Scholar(AgentBase):
    """Stands in for an LLM agent: thinks for a while, without computing, and replies."""

    async def reply(self, x: Any = None) -> Msg:
        """Wait as for a model's answer and count its tokens."""
        number = int(x.content)
        await asyncio.sleep(random.Random(number).uniform(0.2, 1.2))  # noqa: S311 - a delay, not a secret
        record_usage(prompt_tokens=len(str(number)) + 12, completion_tokens=20)
        return Msg(name=self.name, content=f"{number} squared is {number * number}")


def trouble(kind: str) -> str:
    """Go wrong in one of the ways that agents do."""
    if kind == "raise":
        raise ValueError("the model's answer was no JSON")
    if kind == "hang":
        while True:
            time.sleep(0.01)
    os._exit(9)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("demo", help="run tasks, benchmarks and desktops in parallel and look at them")
    parser.add_argument("--tasks", type=int, default=200, help="how many tasks (default: 200)")
    parser.add_argument("--workers", type=int, default=None, help="how many worker processes (default: one per core)")
    parser.add_argument(
        "--rollouts",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="play the samples of the environments too",
    )
    parser.add_argument(
        "--desktops",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="play sample tasks at virtual desktops too",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the batch and show what came of it."""
    from paragent._internal.console import SafeConsole

    console = SafeConsole()
    workers = options.workers or usable_cores()
    processes = counted(workers, "worker process", "worker processes")
    console.print(
        f"[bold]paragent[/]: {counted(options.tasks, 'task')} on {processes}. Most wait like calls to a model;\n"
        "some raise, some hang, some kill their worker. Every one gets exactly one response.\n"
    )
    tasks = list(_tasks(options.tasks))
    config = RunConfig(worker_num=workers, timeout=2.0, max_retries=1, progress=True, job_name="demo")
    started = time.monotonic()
    responses = Runners.sync_run_task(tasks, config)
    seconds = time.monotonic() - started
    console.print(_table(responses, seconds))
    console.print(_troubles(responses))
    console.print(_fan_out())
    worked = sum(response.time_cost for response in responses.values())
    console.print(
        f"\n[bold green]{worked:.0f} s of agents' time in {seconds:.1f} s: {worked / seconds:.0f} times as fast as one "
        "after the other.[/] Every task has its response."
    )
    if options.rollouts:
        show_samples(console)
    if options.desktops:
        show_desktops(console)
    console.print("Read on: README.md, docs/, examples/")
    return 0


def _tasks(count: int) -> Any:
    scholar = Scholar("scholar")
    for number in range(count):
        kind = _TROUBLE.get(number % 100)
        if kind:
            yield Task(input=kind, agent=trouble, id=f"{number:03d}-{kind}")
        else:
            yield Task(input=str(number), agent=scholar, id=f"{number:03d}")


def _table(responses: dict[str, TaskResponse], seconds: float) -> Any:
    from rich.table import Table

    table = Table(title=f"{counted(len(responses), 'response')} in {seconds:.1f} s", title_justify="left")
    for heading in ("status", "tasks", "mean work", "mean queue", "attempts", "tokens"):
        table.add_column(heading, justify="left" if heading == "status" else "right")
    for status in TaskStatus:
        chosen = [response for response in responses.values() if response.status is status]
        if chosen:
            tokens = sum(sum(response.usage.values()) for response in chosen)
            table.add_row(
                f"[{_COLOURS[status]}]{status}[/]",
                str(len(chosen)),
                f"{sum(response.time_cost for response in chosen) / len(chosen):.2f} s",
                f"{sum(response.queue_time for response in chosen) / len(chosen):.2f} s",
                str(sum(response.attempts for response in chosen)),
                f"{tokens:.0f}" if tokens else "",
            )
    return table


def _troubles(responses: dict[str, TaskResponse]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="what went wrong", title_justify="left")
    for heading in ("task", "status", "what it says"):
        table.add_column(heading)
    for response in responses.values():
        if not response.success:
            table.add_row(response.id, f"[{_COLOURS[response.status]}]{response.status}[/]", escape(response.msg))
    return table


def _fan_out() -> str:
    panel = ParallelizableAgent(name="panel", agents=[Scholar(name) for name in ("ada", "blaise", "carl")])
    response = Runners.sync_run(input="12", agent=panel, run_conf=RunConfig(worker_num=1))
    return f"One agent made of three, asked at the same time: {response.answer}"
