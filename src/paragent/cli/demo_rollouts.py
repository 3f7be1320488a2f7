"""The second part of `paragent demo`: the sample tasks of every environment, played by the policy that is no LLM."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["show_samples"]

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
    from paragent.envs.samples import sample_options, sample_path
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
