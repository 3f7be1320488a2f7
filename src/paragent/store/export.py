"""Export of a run's results to the formats of other tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import Implementation, Registry, import_object
from paragent.errors import MissingExtra
from paragent.messages import with_images, without_reasoning
from paragent.store.directory import images_folder, result_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from paragent.store.journal import Journal
    from paragent.store.records import RolloutResult

__all__ = ["FORMATS", "export", "results_of"]

FORMATS = Registry(
    kind="export format",
    implementations={
        "jsonl": Implementation("paragent.store.export:export_jsonl"),
        "openai-chat": Implementation("paragent.store.export:export_openai_chat"),
        "osworld": Implementation("paragent.osworld.formats:export_osworld"),
        "parquet": Implementation("paragent.store.export:export_parquet"),
    },
    entry_points="paragent.export_formats",
)
"""Functions `(journal, target) -> int` that write every final result of a run and return their number."""
_BATCH = 1000
"""Rows of a Parquet file that are in memory at the same time."""
_PARQUET_COLUMNS = {
    "task": "string",
    "attempt": "int64",
    "status": "string",
    "score": "float64",
    "scores": "string",
    "answer": "string",
    "ending": "string",
    "kind": "string",
    "error": "string",
    "turns": "int64",
    "tool_calls": "int64",
    "requests": "int64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "cached_tokens": "int64",
    "reasoning_tokens": "int64",
    "judge_prompt_tokens": "int64",
    "judge_completion_tokens": "int64",
    "seconds": "float64",
    "waited": "float64",
    "started": "float64",
    "ended": "float64",
    "worker": "string",
    "machine": "string",
    "question": "string",
    "expected": "string",
    "trajectory": "string",
}
"""The columns of a Parquet file and their types; structures are JSON texts."""


def export(journal: Journal, form: str, target: Path) -> int:
    """Write every final result of a run to `target` and return their number.

    Args:
        journal: the journal of the run.
        form: a name in `FORMATS`.
        target: the file to write, or the folder for a format with many files.

    Raises:
        UnknownName: the format is unknown.
        MissingExtra: the format is Parquet and pyarrow is not installed.
    """
    write: Callable[[Journal, Path], int] = FORMATS.load(form)
    target.parent.mkdir(parents=True, exist_ok=True)
    return write(journal, target)


def results_of(journal: Journal) -> Iterator[tuple[dict[str, Any], RolloutResult, dict[str, Any]]]:
    """Yield the task, the result and the trajectory of each final result."""
    for result in journal.results():
        task = journal.task(result.task)
        yield asdict(task) if task else {}, result, journal.trajectory(result.number) or {}


def export_jsonl(journal: Journal, target: Path) -> int:
    """Write one JSON object per line: the result with its task and trajectory."""
    count = 0
    with target.open("w", encoding="utf-8") as file:
        for task, result, trajectory in results_of(journal):
            line = json.loads(result_line(result)) | {"benchmark_task": task, "trajectory": trajectory}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


def export_openai_chat(journal: Journal, target: Path) -> int:
    """Write one conversation per line in the format for fine-tuning, with its score as metadata."""
    count = 0
    with target.open("w", encoding="utf-8") as file:
        for _, result, trajectory in results_of(journal):
            if not trajectory.get("messages"):
                continue
            folder = images_folder(journal.folder, result.task, result.attempt)
            line: dict[str, Any] = {
                "messages": with_images(without_reasoning(trajectory["messages"]), _ImageReader(folder))
            }
            if trajectory.get("tools"):
                line["tools"] = trajectory["tools"]
            line["metadata"] = {"task": result.task, "attempt": result.attempt, "score": result.score}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


class _ImageReader:
    """Reads images of a folder; an image that was deleted is empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str) -> bytes:
        path = self._folder / name
        return path.read_bytes() if path.exists() else b""


def export_parquet(journal: Journal, target: Path) -> int:
    """Write a Parquet file with one row for each result."""
    try:
        table_class = import_object("pyarrow:Table")
        writer_class = import_object("pyarrow.parquet:ParquetWriter")
    except ModuleNotFoundError as error:
        raise MissingExtra("the format 'parquet'", "parquet", str(error.name)) from error
    schema, count = import_object("pyarrow:schema")(_PARQUET_COLUMNS.items()), 0
    with writer_class(target, schema) as writer:
        for rows in _batches(journal):
            writer.write_table(table_class.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _batches(journal: Journal) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for task, result, trajectory in results_of(journal):
        row = json.loads(result_line(result))
        row["scores"] = json.dumps(row["scores"])
        row |= {"question": task.get("question"), "expected": json.dumps(task.get("answer"), ensure_ascii=False)}
        row["trajectory"] = json.dumps(trajectory, ensure_ascii=False)
        rows.append(row)
        if len(rows) == _BATCH:
            yield rows
            rows = []
    if rows:
        yield rows
