"""The third part of `paragent demo`: agents at real desktops, three rollouts that share two machines."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.errors import ParagentError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["show_desktops", "thumbnail"]


_FOLDER = Path("results") / "demo"
_RUN = "desktops"
_TASKS = ("02-list", "03-compute", "05-impossible")
"""Some of the samples, those that are played in half a minute where machines are emulated."""
_ROLLOUTS, _MACHINES = 3, 2
_WIDTH = 60
"""Columns of a picture; two of them fit a wide terminal side by side."""


def show_desktops(console: Console) -> None:
    """Play sample tasks at desktops and show what they looked like at the end.

    Machines are virtual ones of QEMU; where those cannot be had it is said, and processes of this host take their place.
    """
    from rich.markup import escape

    console.print(
        f"\n[bold]Desktops[/]: {_ROLLOUTS} rollouts share {_MACHINES} machines and play {len(_TASKS)} sample tasks of the mode "
        "`osworld`, by the accessibility tree."
    )
    for provider, settings in (
        ("qemu", {"path_to_vm": Path("desktop"), "vm_option": {"network": "none"}}),  # its tasks need none
        ("process", {"vm_option": {"desktop": "true"}}),
    ):
        try:
            summary = _play(provider, settings)
        except UsageError as problem:
            console.print(f"no {provider} machines here: {escape(str(problem))}", highlight=False)
        except ParagentError as problem:
            console.print(f"[red]desktops on {provider} machines:[/] {escape(str(problem))}", highlight=False)
        else:
            _show(console, provider, summary)
            return


def _play(provider: str, settings: dict[str, Any]) -> Any:
    from paragent.demo.samples import sample_options, sample_path
    from paragent.rollout import RolloutConfig, run_parallel_rollout

    options = {name: str(value) for name, value in sample_options("osworld").items()}
    return run_parallel_rollout(
        RolloutConfig(
            mode="osworld",
            data=sample_path("osworld"),
            task_id=list(_TASKS),
            model="demo",
            num_rollouts=_ROLLOUTS,
            num_vms=_MACHINES,
            use_vm_pool=True,
            provider_name=provider,
            headless=True,
            output_dir=_FOLDER,
            run_name=_RUN,
            fresh=True,
            env_option=options,
            **settings,
        )
    )


def _show(console: Console, provider: str, summary: Any) -> None:
    from rich.markup import escape

    from paragent.cli.tables import number, plain_table
    from paragent.store import Journal

    run = _FOLDER / _RUN
    with Journal(run / "journal.sqlite", read_only=True) as journal:
        plays = sorted((play for _, play in journal.results()), key=lambda play: play.task)
        asked = {task.id: task.body["question"] for task in journal.tasks()}
    table = plain_table("", "task", "score", "actions", "time")
    table.title = f"{counted(summary.done, 'task')} at {_MACHINES} {provider} machines in {summary.seconds:.0f} s"
    for play in plays:
        table.add_row(escape(asked[play.task]), number(play.score), str(play.tool_calls), f"{play.seconds:.1f} s")
    console.print(table)
    _show_pictures(console, [pictures[-1] for play in plays if (pictures := _pictures(run, play))])
    console.print(f"A picture of every step: {run / 'images'}", highlight=False)


def _pictures(run: Path, play: Any) -> list[Path]:
    from paragent.store import images_folder

    return sorted(images_folder(run, play.task, play.attempt).glob("*.png"))


def _show_pictures(console: Console, files: list[Path]) -> None:
    """Draw pictures where there are colours to draw with, and Pillow to read them."""
    from rich.columns import Columns

    if console.color_system in {"truecolor", "256"} and importlib.util.find_spec("PIL") is not None:
        console.print(
            Columns([thumbnail(file.read_bytes(), min(_WIDTH, console.width - 1)) for file in files], padding=(1, 1))
        )


_UPPER_HALF = "▀"


def thumbnail(png: bytes, columns: int = 64) -> Text:
    """Return a picture as coloured half blocks, `columns` wide.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
        OSError: `png` is no picture.
    """
    from PIL import Image
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    with Image.open(io.BytesIO(png)) as picture:
        rows = max(1, round(picture.height / picture.width * columns / 2))
        small = picture.convert("RGB").resize((columns, rows * 2), Image.Resampling.BOX)
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
