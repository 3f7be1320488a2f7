"""Export format `jsonl`: everything that is stored of each result, except for the content of images."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from paragent.store.directory import result_line
from paragent.store.formats.base import ExportFormat

if TYPE_CHECKING:
    from pathlib import Path

    from paragent.store.formats.base import RunExport

__all__ = ["JsonlFormat"]


class JsonlFormat(ExportFormat):
    """One JSON object per line: the result with its task and its trajectory."""

    def write(self, run: RunExport, target: Path) -> None:
        with target.open("w", encoding="utf-8") as file:
            for rollout in run.rollouts():
                line = json.loads(result_line(rollout.result))
                line |= {"benchmark_task": asdict(rollout.task), "trajectory": rollout.trajectory}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
