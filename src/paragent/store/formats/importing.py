"""Import of trajectories and logs of other tools into a run directory that all commands for stored runs can open.

Imported files come from strangers: documents and images have limits, archives are read member by member, and no path in them
leads out of its folder.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent._internal.file_errors import no_file
from paragent._internal.files import open_regular_file
from paragent._internal.text import well_formed_data
from paragent.errors import ParagentError, UsageError
from paragent.store.directory import IMPORTED, JOURNAL_FILE, RunDirectory
from paragent.store.summary import ATTEMPTS, summarise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from paragent.store.records import RolloutResult
    from paragent.tasks import BenchmarkTask

__all__ = ["BadImport", "ImportReport", "ImportedRollout", "import_files", "parse_document", "read_document"]

LARGEST_DOCUMENT = 256 << 20
"""Bytes of one JSON document."""
_MOST_FILES = 1_000_000
"""Files of one folder."""
_BATCH = 50
"""Results that are in memory at the same time."""
_MOST_PROBLEMS = 20


class BadImport(ParagentError):
    """A file is not in a format that can be imported, or is malformed."""


@dataclass(slots=True)
class ImportedRollout:
    """One imported result. `attempt` of the result may be 0: the next free attempt at its task."""

    task: BenchmarkTask
    result: RolloutResult
    facts: dict[str, Any] = field(default_factory=dict)
    """Settings of the run that it belongs to: `mode`, `model`, `agent`."""


@dataclass(slots=True)
class ImportReport:
    """What was imported."""

    written: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    """The first files and samples that could not be imported, and why."""

    def add_problem(self, problem: str) -> None:
        """Count something that could not be imported."""
        self.failed += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def import_files(paths: Sequence[Path], target: Path) -> ImportReport:
    """Write the results in files and folders to a new run directory.

    Args:
        paths: ATIF trajectories, logs of inspect, or folders of them, such as the jobs of Harbor.
        target: the run directory; it must not exist, or be empty.

    Raises:
        UsageError: `target` is not empty, a path does not exist, or nothing could be imported.
        StoreFailed: the run directory cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists already; choose another --run-name")
    for path in paths:
        if not path.exists():
            raise UsageError(no_file(path))
    report = ImportReport()
    rollouts = _rollouts(paths, report)
    first = next(rollouts, None)
    if first is None:
        reasons = "".join(f"\n  {problem}" for problem in report.problems)
        raise UsageError(
            f"nothing to import in {', '.join(map(str, paths))}: name ATIF trajectories (.json), logs of inspect (.eval, .json) "
            f"or folders of them{reasons}"
        )
    facts = {"format": first.facts.pop("format", ""), "files": [str(path) for path in paths], "at": time.time()}
    identity = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    config = {"mode": "imported", "model": "", "engine": "imported", **first.facts, "imported": facts}
    with RunDirectory(target) as directory:
        directory.open(config, f"imported:{identity}")
        try:
            directory.journal.set_meta(IMPORTED, str(facts["format"]))
            _record(directory, itertools.chain([first], rollouts), report)
        except BaseException:
            directory.undo()
            raise
    return report


def _record(directory: RunDirectory, rollouts: Iterator[ImportedRollout], report: ImportReport) -> None:
    journal = directory.journal
    used: set[tuple[str, int]] = set()
    attempts: Counter[str] = Counter()
    while batch := list(itertools.islice(rollouts, _BATCH)):
        for one in batch:
            result = one.result
            if result.attempt < 1 or (result.task, result.attempt) in used:
                result.attempt = attempts[result.task] + 1
                while (result.task, result.attempt) in used:
                    result.attempt += 1
            used.add((result.task, result.attempt))
            attempts[result.task] = max(attempts[result.task], result.attempt)
        journal.add_tasks(one.task for one in batch)
        results = [one.result for one in batch]
        directory.write_files(results)
        journal.record(results)
        report.written += len(batch)
    journal.set_meta(ATTEMPTS, str(max(attempts.values())))
    [(started, ended)] = journal.rows("SELECT min(nullif(started, 0)), max(ended) FROM results")
    session = journal.begin_session(started or ended)
    journal.update_session(session, max(0.0, (ended or 0.0) - (started or ended or 0.0)), report.written)
    directory.finish(summarise(journal, max(attempts.values())))


def _rollouts(paths: Iterable[Path], report: ImportReport) -> Iterator[ImportedRollout]:
    """Yield the results of all files; files and samples that cannot be read are added to `report`."""
    for path in paths:
        try:
            found = _files(path)
        except BadImport as error:
            report.add_problem(f"{path}: {error}")
            continue
        if not found:
            report.add_problem(f"{path}: the folder has neither ATIF trajectories nor logs of inspect")
        for file in found:
            try:
                yield from _read(file, report)
            except (BadImport, OSError) as error:
                report.add_problem(f"{file}: {error}")


def _files(path: Path) -> list[Path]:
    """Return a file, or the files in a folder that can be imported, sorted; links that lead out of the folder are ignored."""
    if not path.is_dir():
        return [path]
    if (path / JOURNAL_FILE).exists():
        raise BadImport("this is a run directory of paragent; open it with `paragent view` or `paragent show`")
    home = path.resolve()
    found = []
    for count, one in enumerate(path.rglob("*")):
        if count > _MOST_FILES:
            raise BadImport(f"the folder has more than {_MOST_FILES:,} files")
        if (one.name == "trajectory.json" or one.suffix == ".eval") and one.resolve().is_relative_to(home):
            found.append(one)
    if not found:
        found = [one for one in path.glob("*.json") if one.resolve().is_relative_to(home)]
    return sorted(found)


def _read(path: Path, report: ImportReport) -> Iterator[ImportedRollout]:
    from paragent.store.formats.atif_reader import is_atif, read_atif
    from paragent.store.formats.inspect_reader import is_inspect_log, read_archive, read_log

    with open_regular_file(path) as file:
        start = file.read(4)
    if start == b"PK\x03\x04":
        yield from read_archive(path, report)
        return
    document = read_document(path)
    if is_atif(document):
        yield read_atif(path, document)
    elif is_inspect_log(document):
        yield from read_log(path, document, report)
    else:
        raise BadImport("neither an ATIF trajectory (a JSON object with `schema_version`) nor a log of inspect")


def read_document(path: Path) -> Any:
    """Return the JSON document in a file.

    Raises:
        BadImport: it is too large, is not JSON, or is nested too deeply.
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_DOCUMENT:
            raise BadImport(f"the file has {size:,} bytes; the most is {LARGEST_DOCUMENT:,}")
        return parse_document(file.read())


def _finite(text: str) -> float | None:
    """Return a number; None if it is too large, because SQLite and browsers do not accept infinity in JSON."""
    number = float(text)
    return number if math.isfinite(number) else None


def parse_document(content: bytes) -> Any:
    """Return the JSON document in `content`; raises the same errors as `read_document`."""
    try:
        text = content.decode("utf-8-sig")
        return well_formed_data(json.loads(text, parse_float=_finite, parse_constant=lambda _: None))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadImport(f"not JSON: {reason}") from error
