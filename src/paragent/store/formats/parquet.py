"""Export format `parquet`: one row for each result, for data frames and SQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from paragent.store.directory import result_line
from paragent.store.formats.base import ExportFormat
from paragent.store.formats.conversations import dictionaries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paragent.store.formats.base import ExportedRollout, RunExport

__all__ = ["ParquetFormat"]

_BATCH_BYTES = 2 << 20
"""Bytes of trajectories that are in memory at the same time."""
_BATCH_ROWS = 1000
_COLUMNS = {
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
    "branches": "int64",
    "token_sequences": "int64",
    "sampled_tokens": "int64",
    "trajectory": "string",
}
"""The columns and their types; structures are JSON texts."""


class ParquetFormat(ExportFormat):
    """One row for each result. The trajectory, with its token ids, is a column of JSON text."""

    def write(self, run: RunExport, target: Path) -> None:
        schema = pa.schema(_COLUMNS.items())
        with pq.ParquetWriter(target, schema) as writer:
            for rows in _batches(run):
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _batches(run: RunExport) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    for rollout in run.rollouts():
        rows.append(_row(rollout))
        size += len(rows[-1]["trajectory"])
        if len(rows) == _BATCH_ROWS or size > _BATCH_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _row(rollout: ExportedRollout) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(result_line(rollout.result))
    row["scores"] = json.dumps(row["scores"])
    row |= {"question": rollout.task.question, "expected": json.dumps(rollout.task.answer, ensure_ascii=False)}
    sequences = dictionaries(rollout.trajectory.get("tokens"))
    masks = [one["mask"] for one in sequences if isinstance(one.get("mask"), list)]
    row["branches"] = len(dictionaries(rollout.trajectory.get("branches")))
    row |= {"token_sequences": len(sequences), "sampled_tokens": sum(mask.count(1) for mask in masks)}
    row["trajectory"] = json.dumps(rollout.trajectory, ensure_ascii=False)
    return row
