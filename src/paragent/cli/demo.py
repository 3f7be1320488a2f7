"""`paragent demo`: a batch of tasks with failures, benchmark runs, and rollouts on virtual desktops, without an API key."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.agents import AgentBase
from paragent.cli.demo_desktops import show_desktops
from paragent.cli.options import add_command
from paragent.cli.view import check_installed, ssh_command, view_of
from paragent.config import RunConfig, usable_cores
from paragent.errors import MissingExtra, MissingProgram, UsageError
from paragent.execution import record_usage
from paragent.messages import Msg
from paragent.runners import Runners
from paragent.tasks import Task, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rich.console import Console

    from paragent.cli.options import Subparsers
    from paragent.rollout.prepare import RolloutPlan
    from paragent.store import Summary
    from paragent.tasks import TaskResponse

__all__ = ["add"]

_COLOURS = {
    TaskStatus.SUCCEEDED: "green",
    TaskStatus.FAILED: "red",
    TaskStatus.TIMED_OUT: "yellow",
    TaskStatus.LOST: "magenta",
    TaskStatus.CANCELLED: "dim",
}
_FAILURES = {7: "raise", 23: "hang", 41: "die"}
"""Which tasks of every hundred fail, and how."""
_FOLDER = Path("results") / "demo"
_HEADINGS = ("run", "rollouts", "score", "failed", "turns", "tool calls", "time")
_ATTEMPTS, _CONCURRENT, _TIMEOUT = 4, 32, 8.0
_TEMPERATURES = (0.2, 0.8)
"""The runs with `demo-noisy`, which take about 10 s each."""
_SAMPLE_MODES = ("rag", "py", "web")
"""Environments of which the demo runs the sample tasks with `demo`."""
_PROGRAMS = {"py": "bubblewrap", "web": "chromium"}
"""The packages of the system that environments need."""


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "demo",
        "run sample tasks, benchmarks and desktops in parallel",
        "Run sample tasks, benchmarks and desktops in parallel. It needs no API key: the models are scripted policies, not "
        "LLMs. Parts that cannot run on this machine are skipped, with the reason. The runs are stored in results/demo.",
    )
    parser.add_argument("--tasks", type=int, metavar="N", default=200, help="number of tasks (default: 200)")
    parser.add_argument("--workers", type=int, metavar="N", help="number of worker processes (default: one per core)")
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--rollouts", action=flag, default=True, help="also run sample tasks of the environments")
    parser.add_argument("--desktops", action=flag, default=True, help="also run sample tasks on virtual desktops")
    view = "show the runs in a browser while they are executed, and until Ctrl-C"
    parser.add_argument("--view", action="store_true", help=view)
    parser.add_argument("--no-browser", action="store_true", help="with --view: only print the link")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run all parts of the demo."""
    from paragent._internal.text import safe_console

    if options.view:
        check_installed()
    console = safe_console()
    _show_tasks(console, options.tasks, options.workers or usable_cores())
    with _view(console, options):
        missing = _show_rollouts(console) if options.rollouts else {}
        if options.desktops:
            missing |= show_desktops(console, _FOLDER)
        _show_missing(console, missing)
        _show_next(console, options)
        if options.view:
            with contextlib.suppress(KeyboardInterrupt):
                console.print("\nThe pages are served until Ctrl-C.")
                threading.Event().wait()
    return 0


@contextlib.contextmanager
def _view(console: Console, options: argparse.Namespace) -> Iterator[None]:
    """Serve the pages of all runs of the demo, if that was requested."""
    if not options.view:
        yield
        return
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with view_of(_FOLDER, browser=not options.no_browser) as link:
        console.print("\n[bold]View[/]: open this link to watch the next runs in a browser.", highlight=False)
        console.print(f"  [bold cyan]{link}[/]", highlight=False, soft_wrap=True)
        if forwarding := ssh_command(link):
            console.print(f"  On your own computer, first: {forwarding}", highlight=False, soft_wrap=True)
        yield


def _show_missing(console: Console, missing: dict[str, UsageError]) -> None:
    """Print what cannot run on this host: one line for each part."""
    if missing:
        console.print("\n[bold]Optional parts that this machine cannot run yet[/]")
        for part, problem in missing.items():
            line = f"  {part}: {_cure(part, problem)}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cure(part: str, problem: UsageError) -> str:
    """Return a problem and its cure in one line."""
    if isinstance(problem, MissingExtra):
        return f"needs an extra; {problem.command}"
    if isinstance(problem, MissingProgram) and part in _PROGRAMS:
        return f"{problem.problem}; install the package {_PROGRAMS[part]}"
    return " ".join(str(problem).split())


def _show_next(console: Console, options: argparse.Namespace) -> None:
    program = _program()
    low, high = (f"demo/{_noisy_run(one)}" for one in _TEMPERATURES)
    steps = (
        {f"{program} view {_FOLDER}": "look at these runs in a browser"}
        if options.rollouts and not options.view
        else {}
    )
    if options.rollouts:
        steps[f"{program} compare {low} {high}"] = "compare two of the runs"
    steps[f"{program} init my-project"] = "make a project of your own"
    steps[f"{program} doctor"] = "see what this machine can run"
    steps[f"{program} docs"] = "read the documentation"
    width = max(map(len, steps))
    console.print("\n[bold]Next[/]")
    for step, purpose in steps.items():
        console.print(f"  {step:<{width}}   {purpose}", highlight=False, soft_wrap=True)


def _program() -> str:
    """Return how this program is called: by its path if it is not on the PATH, as after `make demo`."""
    own = Path(sys.argv[0])
    return str(own) if own.name == "paragent" and shutil.which("paragent") is None else "paragent"


# --- tasks ------------------------------------------------------------------------------------------------------------


class SampleAgent(AgentBase):
    """Simulates an LLM agent: waits without computing, then replies."""

    async def reply(self, x: Any = None) -> Msg:
        """Wait as for a model and count its tokens."""
        number = int(x.content)
        await asyncio.sleep(random.Random(number).uniform(0.2, 1.2))  # noqa: S311 - a delay, not a secret
        record_usage(prompt_tokens=len(str(number)) + 12, completion_tokens=20)
        return Msg(name=self.name, content=f"{number} squared is {number * number}")


def fail(kind: str) -> str:
    """Fail in one of the ways in which agents fail."""
    if kind == "raise":
        raise ValueError("the model's answer is not JSON")
    if kind == "hang":
        while True:
            time.sleep(0.01)
    os._exit(9)


def _show_tasks(console: Console, count: int, workers: int) -> None:
    processes = counted(workers, "worker process", "worker processes")
    console.print(
        f"[bold]Tasks[/]: {counted(count, 'task')} on {processes}. Most tasks wait, like calls to a model; some raise, some "
        "hang, some kill their worker. Each task gets exactly one response.\n"
    )
    config = RunConfig(worker_num=workers, timeout=2.0, max_retries=1, progress=True, job_name="demo")
    started = time.monotonic()
    responses = Runners.sync_run_task(list(_tasks(count)), config)
    seconds = time.monotonic() - started
    console.print(_response_table(responses, seconds))
    console.print(_failure_table(responses))
    worked = sum(response.time_cost for response in responses.values())
    console.print(
        f"[bold green]{worked:.0f} s of work in {seconds:.1f} s: {worked / seconds:.0f} times as fast as sequential "
        "execution.[/]"
    )


def _tasks(count: int) -> Any:
    agent = SampleAgent("sample")
    for number in range(count):
        kind = _FAILURES.get(number % 100)
        if kind:
            yield Task(input=kind, agent=fail, id=f"{number:03d}-{kind}")
        else:
            yield Task(input=str(number), agent=agent, id=f"{number:03d}")


def _response_table(responses: dict[str, TaskResponse], seconds: float) -> Any:
    from rich.table import Table

    table = Table(title=f"{counted(len(responses), 'response')} in {seconds:.1f} s", title_justify="left")
    for heading in ("status", "tasks", "mean work", "mean queue", "executions", "tokens"):
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
                str(sum(response.executions for response in chosen)),
                f"{tokens:.0f}" if tokens else "",
            )
    return table


def _failure_table(responses: dict[str, TaskResponse]) -> Any:
    from rich.table import Table

    from paragent.cli.tables import escape

    table = Table(title="failures", title_justify="left")
    for heading in ("tasks", "status", "message of the first"):
        table.add_column(heading)
    for status in TaskStatus:
        chosen = [response for response in responses.values() if response.status is status and not response.success]
        if chosen:
            ids = ", ".join(response.id for response in chosen)
            table.add_row(ids, f"[{_COLOURS[status]}]{status}[/]", escape(chosen[0].msg))
    return table


# --- rollouts ---------------------------------------------------------------------------------------------------------


def _show_rollouts(console: Console) -> dict[str, UsageError]:
    """Execute the benchmark runs and show a table. Return the environments that cannot run on this host, and why."""
    from paragent.cli.display import run_displayed
    from paragent.cli.tables import fitted_table

    plans, missing = _rollout_plans()
    _announce_rollouts(console, plans)
    rows = []
    worked = seconds = 0.0
    for part, plan in plans.items():
        try:
            summary = run_displayed(plan)
        except UsageError as problem:
            missing[part] = problem
            continue
        rows.append(dict(zip(_HEADINGS, _row(plan.path.name, summary), strict=True)))
        worked, seconds = worked + summary.seconds_worked, seconds + summary.seconds
    if rows:
        table = fitted_table(console.width, rows, optional=("tool calls", "turns"))
        for column in table.columns[1:]:
            column.justify = "right"
        console.print(table)
        console.print(f"[bold green]{worked:.0f} s of rollouts in {seconds:.0f} s.[/]", highlight=False)
    return missing


def _rollout_plans() -> tuple[dict[str, RolloutPlan], dict[str, UsageError]]:
    """Return the benchmark runs that are possible on this host, and why the others are not."""
    from paragent.rollout.prepare import prepare

    configs = {f"math, temperature {one}": _noisy_config(one) for one in _TEMPERATURES}
    configs |= {mode: _sample_config(mode, mode, model="demo") for mode in _SAMPLE_MODES}
    plans: dict[str, RolloutPlan] = {}
    missing: dict[str, UsageError] = {}
    for part, config in configs.items():
        try:
            plans[part] = prepare(config)
        except UsageError as problem:
            missing[part] = problem
    return plans, missing


def _announce_rollouts(console: Console, plans: Collection[str]) -> None:
    """Print what will run."""
    samples = [mode for mode in _SAMPLE_MODES if mode in plans]
    temperatures = " and ".join(str(one) for one in _TEMPERATURES)
    parts = [f"a benchmark of math questions, {_ATTEMPTS} attempts at each, at the temperatures {temperatures}"]
    parts = parts if len(samples) < len(plans) else []
    parts += [f"sample tasks of the environments {', '.join(samples)}"] if samples else []
    if parts:
        console.print(
            f"\n[bold]Rollouts[/]: {', and '.join(parts)}. The models `demo` and `demo-noisy` are scripted policies, not LLMs; "
            "`demo-noisy` makes mistakes. The scores only show what a run looks like.\n",
            highlight=False,
        )


def _row(run: str, summary: Summary) -> tuple[str, ...]:
    from paragent.cli.tables import interval_text, number
    from paragent.store import JOURNAL_FILE, Journal

    with Journal(_FOLDER / run / JOURNAL_FILE, read_only=True) as journal:
        [(turns, calls)] = journal.rows("SELECT sum(turns), sum(tool_calls) FROM results WHERE final = 1")
    interval = f" ({interval_text(summary.interval, '.2f')})" if summary.interval else ""
    failed = sum(summary.failures.values())
    return (
        run,
        str(summary.rollouts),
        f"{number(summary.mean, '.2f')}{interval}",
        f"[red]{failed}[/]" if failed else "",
        str(turns),
        str(calls),
        f"{summary.seconds:.1f} s",
    )


def _noisy_run(temperature: float) -> str:
    return f"math-t{temperature}"


def _noisy_config(temperature: float) -> Any:
    return _sample_config(
        "math",
        _noisy_run(temperature),
        model="demo-noisy",
        temperature=temperature,
        attempts=_ATTEMPTS,
        num_rollouts=_CONCURRENT,
        timeout=_TIMEOUT,
    )


def _sample_config(mode: str, run_name: str, **settings: Any) -> Any:
    from paragent.demo.samples import sample_options, sample_path
    from paragent.rollout import RolloutConfig

    options = {name: str(value) for name, value in sample_options(mode).items()}
    return RolloutConfig(
        mode=mode,
        data=sample_path(mode),
        output_dir=_FOLDER,
        run_name=run_name,
        fresh=True,
        env_option=options,
        **settings,
    )
