"""`paragent demo`: a batch of tasks with failures, sample rollouts, and rollouts on virtual desktops."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import io
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.agents import AgentBase, ParallelizableAgent
from paragent.cli.options import add_command
from paragent.config import RunConfig, usable_cores
from paragent.errors import ParagentError, UsageError
from paragent.execution import record_usage
from paragent.messages import Msg
from paragent.runners import Runners
from paragent.store import find_runs
from paragent.tasks import Task, TaskStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from paragent.cli.options import Subparsers
    from paragent.tasks import TaskResponse

__all__ = ["add", "show_desktops", "show_samples", "thumbnail"]

_COLOURS = {
    TaskStatus.SUCCEEDED: "green",
    TaskStatus.FAILED: "red",
    TaskStatus.TIMED_OUT: "yellow",
    TaskStatus.LOST: "magenta",
    TaskStatus.CANCELLED: "dim",
}
_FAILURES = {7: "raise", 23: "hang", 41: "die"}
"""Which tasks of every hundred fail, and how."""
_SAMPLE_MODES = ("math", "py", "rag", "web")
_FOLDER = Path("results") / "demo"
_DESKTOP_RUN = "desktops"
_DESKTOP_TASKS = ("02-list", "03-compute", "05-impossible")
"""Sample tasks that take half a minute on emulated machines."""
_DESKTOP_ROLLOUTS, _DESKTOP_MACHINES = 3, 2
_IMAGE_WIDTH = 60
"""Columns of an image; two images fit side by side in a wide terminal."""
_UPPER_HALF = "▀"


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(subparsers, "demo", "run sample tasks, benchmarks and desktops in parallel")
    parser.add_argument("--tasks", type=int, metavar="N", default=200, help="number of tasks (default: 200)")
    parser.add_argument("--workers", type=int, metavar="N", help="number of worker processes (default: one per core)")
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--rollouts", action=flag, default=True, help="also run sample tasks of the environments")
    parser.add_argument("--desktops", action=flag, default=True, help="also run sample tasks on virtual desktops")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run all parts of the demo."""
    from paragent._internal.text import safe_console

    console = safe_console()
    _show_tasks(console, options.tasks, options.workers or usable_cores())
    if options.rollouts:
        show_samples(console)
    if options.desktops:
        show_desktops(console)
    if find_runs(_FOLDER):
        console.print(
            f"To look at these runs in a browser: {_program()} view {_FOLDER}", highlight=False, soft_wrap=True
        )
    console.print("Next: README.md, docs/, examples/")
    return 0


# --- tasks ------------------------------------------------------------------------------------------------------------


class SampleAgent(AgentBase):
    """Simulates an LLM agent: waits without computing, then replies."""

    async def reply(self, x: Any = None) -> Msg:
        """Wait as for a model and count its tokens."""
        number = int(x.content)
        await asyncio.sleep(random.Random(number).uniform(0.2, 1.2))  # noqa: S311 - a delay, not a secret
        record_usage(prompt_tokens=len(str(number)) + 12, completion_tokens=20)
        return Msg(name=self.name, content=f"{number} squared is {number * number}")


def _program() -> str:
    """Return how this program is called: by its path if it is not on the PATH, as after `make demo`."""
    own = Path(sys.argv[0])
    return str(own) if own.name == "paragent" and shutil.which("paragent") is None else "paragent"


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
        f"[bold]paragent[/]: {counted(count, 'task')} on {processes}. Most tasks wait, like calls to a model;\n"
        "some raise, some hang, some kill their worker. Each task gets exactly one response.\n"
    )
    config = RunConfig(worker_num=workers, timeout=2.0, max_retries=1, progress=True, job_name="demo")
    started = time.monotonic()
    responses = Runners.sync_run_task(list(_tasks(count)), config)
    seconds = time.monotonic() - started
    console.print(_response_table(responses, seconds))
    console.print(_failure_table(responses))
    console.print(_parallel_agent())
    worked = sum(response.time_cost for response in responses.values())
    console.print(
        f"\n[bold green]{worked:.0f} s of work in {seconds:.1f} s: {worked / seconds:.0f} times as fast as sequential "
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
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="failures", title_justify="left")
    for heading in ("task", "status", "message"):
        table.add_column(heading)
    for response in responses.values():
        if not response.success:
            table.add_row(response.id, f"[{_COLOURS[response.status]}]{response.status}[/]", escape(response.msg))
    return table


def _parallel_agent() -> str:
    group = ParallelizableAgent(name="group", agents=[SampleAgent(name) for name in ("first", "second", "third")])
    response = Runners.sync_run(input="12", agent=group, run_conf=RunConfig(worker_num=1))
    return f"A parallel agent with three members: {response.answer}"


# --- rollouts ---------------------------------------------------------------------------------------------------------


def show_samples(console: Console) -> None:
    """Run the sample tasks and show a table. Environments that cannot run on this host are reported and skipped."""
    from paragent.cli.tables import number, plain_table
    from paragent.rollout import run_parallel_rollout

    console.print(
        "\n[bold]Rollouts[/]: sample tasks of four environments. The model is `demo`, a scripted policy. "
        "It is not an LLM; the scores only show that the pipeline works."
    )
    table = plain_table("", "environment", "tasks", "score", "turns", "tool calls", "time")
    skipped: list[str] = []
    for mode in _SAMPLE_MODES:
        console.print(f"running {mode} ...")
        try:
            summary = run_parallel_rollout(_sample_config(mode))
        except UsageError as problem:
            skipped.append(f"{mode} is skipped: {problem}")
            continue
        turns, calls = _turns_and_calls(mode)
        table.add_row(
            mode, str(summary.tasks), number(summary.mean), str(turns), str(calls), f"{summary.seconds:.1f} s"
        )
    console.print(table)
    for sentence in skipped:
        console.print(sentence, highlight=False, markup=False)
    console.print(
        "With a real model: paragent rollout --mode math --data tasks.jsonl --model ...; see docs/guide/rollouts.md"
    )


def _sample_config(mode: str) -> Any:
    from paragent.demo.samples import sample_options, sample_path
    from paragent.rollout import RolloutConfig

    options = {name: str(value) for name, value in sample_options(mode).items()}
    return RolloutConfig(
        mode=mode,
        data=sample_path(mode),
        model="demo",
        output_dir=_FOLDER,
        run_name=mode,
        fresh=True,
        env_option=options,
    )


def _turns_and_calls(mode: str) -> tuple[int, int]:
    from paragent.store import JOURNAL_FILE, Journal

    with Journal(_FOLDER / mode / JOURNAL_FILE, read_only=True) as journal:
        [(turns, calls)] = journal.rows("SELECT sum(turns), sum(tool_calls) FROM results WHERE final = 1")
    return turns, calls


# --- desktops ---------------------------------------------------------------------------------------------------------


def show_desktops(console: Console) -> None:
    """Run sample tasks on desktops and show their last screenshots.

    Machines are QEMU virtual machines. If they are not available, processes of this host are used instead.
    """
    from rich.markup import escape

    console.print(
        f"\n[bold]Desktops[/]: {_DESKTOP_ROLLOUTS} rollouts share {_DESKTOP_MACHINES} machines and run "
        f"{len(_DESKTOP_TASKS)} sample tasks of `--mode osworld`, with the accessibility tree as observation."
    )
    for provider, settings in (
        ("qemu", {"path_to_vm": Path("desktop"), "vm_option": {"network": "none"}}),  # these tasks need no network
        ("process", {"vm_option": {"desktop": "true"}}),
    ):
        try:
            summary = _run_desktops(provider, settings)
        except UsageError as problem:
            console.print(f"{provider} machines are not available here: {escape(str(problem))}", highlight=False)
        except ParagentError as problem:
            console.print(f"[red]desktops on {provider} machines:[/] {escape(str(problem))}", highlight=False)
        else:
            _show_desktop_results(console, provider, summary)
            return


def _run_desktops(provider: str, settings: dict[str, Any]) -> Any:
    from paragent.demo.samples import sample_options, sample_path
    from paragent.rollout import RolloutConfig, run_parallel_rollout

    options = {name: str(value) for name, value in sample_options("osworld").items()}
    return run_parallel_rollout(
        RolloutConfig(
            mode="osworld",
            data=sample_path("osworld"),
            task_id=list(_DESKTOP_TASKS),
            model="demo",
            num_rollouts=_DESKTOP_ROLLOUTS,
            num_vms=_DESKTOP_MACHINES,
            use_vm_pool=True,
            provider_name=provider,
            headless=True,
            output_dir=_FOLDER,
            run_name=_DESKTOP_RUN,
            fresh=True,
            env_option=options,
            **settings,
        )
    )


def _show_desktop_results(console: Console, provider: str, summary: Any) -> None:
    from rich.markup import escape

    from paragent.cli.tables import number, plain_table
    from paragent.store import JOURNAL_FILE, Journal, images_folder

    run = _FOLDER / _DESKTOP_RUN
    with Journal(run / JOURNAL_FILE, read_only=True) as journal:
        results = sorted(journal.results(), key=lambda result: result.task)
        questions = {task.id: task.question for task in journal.tasks()}
    title = f"{counted(summary.done, 'task')} on {_DESKTOP_MACHINES} {provider} machines in {summary.seconds:.0f} s"
    table = plain_table(title, "task", "score", "actions", "time")
    last_screenshots = []
    for result in results:
        question, score = escape(questions[result.task]), number(result.score)
        table.add_row(question, score, str(result.tool_calls), f"{result.seconds:.1f} s")
        screenshots = sorted(images_folder(run, result.task, result.attempt).glob("*.png"))
        last_screenshots += screenshots[-1:]
    console.print(table)
    _show_images(console, last_screenshots)
    console.print(f"Screenshots of all steps: {run / 'images'}", highlight=False)


def _show_images(console: Console, files: list[Path]) -> None:
    """Draw images if the terminal has colours and Pillow is installed."""
    from rich.columns import Columns

    if console.color_system in {"truecolor", "256"} and importlib.util.find_spec("PIL") is not None:
        width = min(_IMAGE_WIDTH, console.width - 1)
        console.print(Columns([thumbnail(file.read_bytes(), width) for file in files], padding=(1, 1)))


def thumbnail(png: bytes, columns: int = 64) -> Text:
    """Return an image as coloured half blocks, `columns` wide.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
        OSError: `png` is not an image.
    """
    from PIL import Image
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    with Image.open(io.BytesIO(png)) as image:
        rows = max(1, round(image.height / image.width * columns / 2))
        small = image.convert("RGB").resize((columns, rows * 2), Image.Resampling.BOX)
    pixels = small.tobytes()

    def colour(column: int, row: int) -> Color:
        start = 3 * (row * columns + column)
        return Color.from_rgb(*pixels[start : start + 3])

    text = Text(no_wrap=True)
    for row in range(0, rows * 2, 2):
        for column in range(columns):
            text.append(_UPPER_HALF, Style(color=colour(column, row), bgcolor=colour(column, row + 1)))
        text.append("\n")
    text.rstrip()
    return text
