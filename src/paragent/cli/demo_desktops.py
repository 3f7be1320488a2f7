"""The last part of `paragent demo`: rollouts on virtual desktops, with their last screenshots in the terminal."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require_extra
from paragent._internal.text import counted
from paragent.errors import ParagentError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["show_desktops", "thumbnail"]

_RUN = "desktops"
_TASKS = ("02-list", "03-compute", "05-impossible")
"""Sample tasks that take half a minute on emulated machines."""
_ROLLOUTS, _MACHINES = 3, 2
_IMAGE_WIDTH = 60
"""Columns of an image; two images fit side by side in a wide terminal."""
_UPPER_HALF = "▀"


def show_desktops(console: Console, folder: Path) -> dict[str, UsageError]:
    """Run sample tasks on desktops and show their last screenshots.

    Machines are QEMU virtual machines. If they are not available, processes of this host are used instead.

    Args:
        console: where to print.
        folder: the folder of the run.

    Returns:
        What cannot run on this host, and why.
    """
    from paragent.cli.tables import escape

    try:
        require_extra("the desktops of the demo", extra="osworld,qemu", package="bs4")
    except UsageError as problem:
        return {"desktops": problem}
    console.print(
        f"\n[bold]Desktops[/]: {_ROLLOUTS} rollouts share {_MACHINES} machines and run "
        f"{len(_TASKS)} sample tasks of `--mode osworld`, with the accessibility tree as observation."
    )
    missing: dict[str, UsageError] = {}
    for provider, settings in (
        ("qemu", {"path_to_vm": Path("desktop"), "vm_option": {"network": "none"}}),  # these tasks need no network
        ("process", {"vm_option": {"desktop": "true"}}),
    ):
        try:
            summary = _run_desktops(folder, provider, settings)
        except UsageError as problem:
            missing[f"desktops ({provider})"] = problem
        except ParagentError as problem:
            console.print(f"[red]desktops on {provider} machines:[/] {escape(str(problem))}", highlight=False)
        else:
            _show_results(console, folder / _RUN, provider, summary)
            break
    return missing


def _run_desktops(folder: Path, provider: str, settings: dict[str, Any]) -> Any:
    from paragent.cli.display import run_displayed
    from paragent.demo.samples import sample_options, sample_path
    from paragent.rollout import RolloutConfig
    from paragent.rollout.prepare import prepare

    options = {name: str(value) for name, value in sample_options("osworld").items()}
    config = RolloutConfig(
        mode="osworld",
        data=sample_path("osworld"),
        task_id=list(_TASKS),
        model="demo",
        num_rollouts=_ROLLOUTS,
        num_vms=_MACHINES,
        use_vm_pool=True,
        provider_name=provider,
        headless=True,
        output_dir=folder,
        run_name=_RUN,
        fresh=True,
        env_option=options,
        **settings,
    )
    return run_displayed(prepare(config))


def _show_results(console: Console, run: Path, provider: str, summary: Any) -> None:
    from paragent.cli.tables import escape, number, plain_table
    from paragent.store import JOURNAL_FILE, Journal, images_folder

    with Journal(run / JOURNAL_FILE, read_only=True) as journal:
        results = sorted(journal.results(), key=lambda result: result.task)
        questions = {task.id: task.question for task in journal.tasks()}
    title = f"{counted(summary.done, 'task')} on {_MACHINES} {provider} machines in {summary.seconds:.0f} s"
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
