"""Static export: the pages and their data as files that any web server can publish."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import ParagentError, UsageError
from paragent.store.formats.images import image_type
from paragent.view.api import PageSettings, RunList
from paragent.view.comparison import MOST_RUNS, compare_runs
from paragent.view.encoding import to_json
from paragent.view.queries import rollout_rows, run_detail
from paragent.view.timeline import TimelineData
from paragent.view.transcripts import (
    MOST_CHARACTERS,
    execution_detail,
    raw_calls,
    read_image,
    step_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paragent.view.api import ExecutionDetail
    from paragent.view.runs import StoredRun

__all__ = ["ExportProgress", "export_runs"]

_BUCKETS = 2000
"""The width of the exported timeline; an export cannot be enlarged beyond that."""
_MOST_RAW = 2_000
"""Executions up to which requests are exported: each request repeats all messages before it."""
_ALL = 1 << 62


@dataclass(slots=True)
class ExportProgress:
    """How much is written."""

    executions: int = 0
    total: int = 0
    files: int = 0
    size: int = 0
    """Bytes."""


def export_runs(
    runs: Sequence[StoredRun],
    target: Path,
    settings: PageSettings,
    bundle: Path,
    watch: Callable[[ExportProgress], None] = lambda _: None,
) -> ExportProgress:
    """Write the pages and the data of runs; `target` has the old content or all of the new one.

    Args:
        runs: the runs. One that cannot be read is only listed.
        target: the folder; it must not exist, be empty, or be an earlier export.
        settings: what `settings.json` contains.
        bundle: the built pages.
        watch: called after each execution.

    Raises:
        UsageError: the folder has other content.
        OSError: a file cannot be written.
    """
    _check(target)
    draft = target.with_name(f".{target.name}.draft-{os.getpid()}")
    try:
        shutil.copytree(bundle, draft)
        progress = _Export(draft / "data", watch).write(runs, settings)
        _replace(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return progress


def _check(target: Path) -> None:
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}")
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not _is_export(target))):
        raise UsageError(f"{target} is not empty and not an earlier export; choose another folder")


def _is_export(folder: Path) -> bool:
    try:
        found = json.loads((folder / "data" / "settings.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("static") is True and (folder / "index.html").exists()


def _replace(draft: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    draft.rename(target)
    shutil.rmtree(old, ignore_errors=True)


class _Export:
    """Writes the files below `data`; the table in docs/design/view.md lists them."""

    def __init__(self, data: Path, watch: Callable[[ExportProgress], None]) -> None:
        self._data = data
        self._watch = watch
        self._progress = ExportProgress()

    def write(self, runs: Sequence[StoredRun], settings: PageSettings) -> ExportProgress:
        """Write everything; return what was written."""
        readable: list[tuple[StoredRun, list[int]]] = []
        rows = []
        for run in runs:
            rows.append(run.row())
            try:
                with run.open() as journal:
                    numbers = [number for (number,) in journal.rows("SELECT number FROM results ORDER BY number")]
            except ParagentError:
                continue  # its row says why
            readable.append((run, numbers))
            self._progress.total += len(numbers)
        self._add(["settings.json"], settings)
        self._add(["runs.json"], RunList(rows))
        for run, numbers in readable:
            self._write_run(run, numbers)
        named = sorted((run for run, _ in readable), key=lambda run: run.name)
        for pair in itertools.combinations(named[:MOST_RUNS], 2):
            self._add(["compare", f"{pair[0].name},{pair[1].name}.json"], compare_runs(pair))
        return self._progress

    def _write_run(self, run: StoredRun, numbers: Sequence[int]) -> None:
        folder = ["runs", run.name]
        detail = run_detail(run)
        detail.live = False
        self._add([*folder, "run.json"], detail)
        self._add([*folder, "rollouts.json"], rollout_rows(run, limit=_ALL))
        self._add([*folder, "timeline.json"], run.part(TimelineData).timeline(None, None, _BUCKETS))
        with_raw = len(numbers) <= _MOST_RAW
        for number in numbers:
            found = execution_detail(run, number)
            self._write_execution(run, found, with_raw=with_raw)
            self._progress.executions += 1
            self._watch(self._progress)

    def _write_execution(self, run: StoredRun, found: ExecutionDetail, *, with_raw: bool) -> None:
        folder = ["runs", run.name, "executions"]
        if with_raw:
            for index, call in raw_calls(run, found.number).items():
                self._add([*folder, str(found.number), "raw", f"{index}.json"], call)
        for step in found.steps:
            step.raw = step.raw and with_raw
            if step.length > MOST_CHARACTERS:
                text = step_text(run, found.number, step.index).encode(errors="replace")
                self._add([*folder, str(found.number), "text", f"{step.index}.txt"], text)
        for name in dict.fromkeys(name for step in found.steps for name in step.images):
            try:
                content = read_image(run, found.number, name)
            except ParagentError:
                continue  # deleted
            if image_type(content) is not None:
                self._add(["runs", run.name, "images", str(found.number), name], content)
        found.files = []
        self._add([*folder, f"{found.number}.json"], found)

    def _add(self, parts: Sequence[str], content: Any) -> None:
        path = self._data.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        body = content if isinstance(content, bytes) else to_json(content)
        path.write_bytes(body)
        self._progress.files += 1
        self._progress.size += len(body)
