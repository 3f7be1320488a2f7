"""Benchmark files: a JSON list, `{"items": [...]}`, one task, JSON lines or a format of the environment; gzipped or not."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from paragent._internal.text import counted, read_json, well_formed_data
from paragent.envs import Environment
from paragent.errors import BadData, ConfigError, UsageError
from paragent.tasks import BenchmarkTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from paragent.envs.base import LoadedTask

    LoadTasks = Callable[[Path, Any], Iterator[LoadedTask] | None]

__all__ = ["Benchmark", "read_benchmark"]

_IDS = ("id", "task_id")
_QUESTIONS = ("question", "query", "input", "instruction", "prompt", "content")
_ANSWERS = ("answer", "ground_truth", "expected")
_GZIP = b"\x1f\x8b"
_NAMED = 10
"""Tasks that a refusal names; a whole benchmark of them would hide what to do."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The tasks of a file that were chosen; iterating reads the file again, so memory stays flat."""

    path: Path
    size: int
    digest: str
    """Of the chosen tasks, in their order."""
    limit: int | None
    chosen: frozenset[str]
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The ids of tasks that the environment cannot play, and what each lacks."""
    load_tasks: LoadTasks = Environment.load_tasks
    """Reads the environment's own dataset format."""

    def __iter__(self) -> Iterator[BenchmarkTask]:
        items = (item for _, item in _items(self.path, [], self.load_tasks))
        chosen = (item for item in items if not self.chosen or item.id in self.chosen)
        return itertools.islice((item for item in chosen if item.id not in self.left_out), self.limit)


def read_benchmark(
    path: Path,
    *,
    limit: int | None = None,
    task_ids: Sequence[str] = (),
    lacking: Callable[[BenchmarkTask], Sequence[str]] = lambda _: (),
    skip: bool = False,
    load_tasks: LoadTasks = Environment.load_tasks,
) -> Benchmark:
    """Check a whole file and return its tasks.

    Args:
        path: the file.
        limit: only so many.
        task_ids: only these.
        lacking: says what a task needs that is not there.
        skip: leave such tasks out, instead of refusing them.
        load_tasks: reads the environment's own dataset format, see `Environment.load_tasks`.

    Raises:
        ConfigError: there is no such file, or it cannot be read.
        BadData: some lines cannot be tasks; each is named with its number and the reason.
        UsageError: no task is left, a chosen id is not in the file, or a task cannot be played.
    """
    if not path.is_file():
        raise ConfigError(f"--data: there is no file {path}")
    problems: list[tuple[int, str]] = []
    seen: dict[str, int] = {}
    left_out: dict[str, Sequence[str]] = {}
    chosen = frozenset(task_ids)
    digest = hashlib.sha256()
    size = 0
    for line, item in _items(path, problems, load_tasks):
        if item.id in seen:
            problems.append((line, f"the id {item.id!r} was used before, in line {seen[item.id]}"))
            continue
        seen[item.id] = line
        if (not chosen or item.id in chosen) and (limit is None or size < limit):
            if needs := lacking(item):
                left_out[item.id] = needs
                continue
            digest.update(digest_of(item).encode())
            size += 1
    if problems:
        raise BadData(str(path), sorted(problems))
    if missing := sorted(chosen - set(seen)):
        raise UsageError(f"--task-id: {path} has no task {missing[0]!r}")
    if left_out and not skip:
        raise UsageError(_refusal(path, left_out))
    if not size:
        raise UsageError(f"{path} has no tasks" + (" that can be played here" if left_out else ""))
    return Benchmark(path, size, digest.hexdigest(), limit, chosen, left_out, load_tasks)


def _refusal(path: Path, left_out: Mapping[str, Sequence[str]]) -> str:
    named = "".join(f"\n  {task}: needs {', '.join(needs)}" for task, needs in list(left_out.items())[:_NAMED])
    more = f"\n  ... and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    return (
        f"{counted(len(left_out), 'task')} of {path} cannot be played here; nothing was started:{named}{more}\n"
        "Use --skip-unsupported to play the others"
    )


def digest_of(item: BenchmarkTask) -> str:
    """Return a digest of everything that a task says."""
    text = json.dumps([item.id, item.question, item.answer, item.metadata], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _items(path: Path, problems: list[tuple[int, str]], load_tasks: LoadTasks) -> Iterator[tuple[int, BenchmarkTask]]:
    """Yield the lines that can be tasks, and note why others cannot."""
    for line, entry in _entries(path, problems, load_tasks):
        try:
            yield line, _item(entry, line)
        except ValueError as error:
            problems.append((line, str(error)))


def _entries(path: Path, problems: list[tuple[int, str]], load_tasks: LoadTasks) -> Iterator[tuple[int, Any]]:
    """Yield what stands in a file, with its number.

    Raises:
        ConfigError: the file cannot be read, or has no text.
    """
    try:
        yield from _read(path, problems, load_tasks)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"--data: {path} cannot be read as JSON, in UTF-8, gzipped or not: {error}") from error


def _read(path: Path, problems: list[tuple[int, str]], load_tasks: LoadTasks) -> Iterator[tuple[int, Any]]:
    with _open(path) as file:
        first = next((line for line in file if line.strip()), "")
        whole = _is_one_document(path, first, load_tasks)
    with _open(path) as file:
        if whole:
            yield from _document(path, file.read(), problems, load_tasks)
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, read_json(line)
            except ValueError as error:
                problems.append((number, f"no JSON: {error}"))


_LIST_IN_OBJECT = re.compile(r'\s*\{\s*"[^"]*"\s*:\s*\[')
"""The first line of an object that begins with a list and has line breaks, as an index of tasks has."""


def _is_one_document(path: Path, first: str, load_tasks: LoadTasks) -> bool:
    """Return whether a file that begins with this line is one JSON document, and not a line of JSON for each task."""
    if first.lstrip().startswith("["):
        return True
    try:
        entry = json.loads(first)
    except ValueError:
        return first.strip() == "{" or '"items"' in first or _LIST_IN_OBJECT.match(first) is not None
    if isinstance(entry, dict) and isinstance(entry.get("items"), list):
        return True
    return load_tasks(path, entry) is not None


def _document(
    path: Path, text: str, problems: list[tuple[int, str]], load_tasks: LoadTasks
) -> Iterator[tuple[int, Any]]:
    """Yield the entries of a JSON document; they are numbered, for a document has no lines of its own."""
    try:
        document = read_json(text)
    except json.JSONDecodeError as error:
        problems.append((error.lineno, f"no JSON: {error.msg}"))
        return
    loaded = load_tasks(path, document)
    if loaded is not None:
        yield from _loaded(loaded, problems)
        return
    if isinstance(document, dict) and _first(document, _QUESTIONS, None) is not None:
        document = [document]
    entries = document.get("items") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        problems.append(
            (1, 'neither a list of tasks, nor a task, nor {"items": [...]}, nor a format of this environment')
        )
        return
    yield from enumerate(entries, 1)


def _loaded(tasks: Iterator[LoadedTask], problems: list[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """Yield the tasks that the environment has read, numbered."""
    for number, one in enumerate(tasks, 1):
        if one.problem:
            problems.append((number, one.problem))
        else:
            yield number, well_formed_data(one.task)


def _open(path: Path) -> TextIO:
    with path.open("rb") as binary:
        packed = binary.read(2) == _GZIP
    return gzip.open(path, "rt", encoding="utf-8-sig") if packed else path.open(encoding="utf-8-sig")


def _item(entry: Any, line: int) -> BenchmarkTask:
    if not isinstance(entry, dict):
        raise ValueError(f"a task is an object, not {json.dumps(entry)[:60]}")  # noqa: TRY004 - one kind of problem
    identity = _first(entry, _IDS, f"item_{line}")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise ValueError(f"the id must be a text or a number, not {json.dumps(identity)[:60]}")
    question = _first(entry, _QUESTIONS, None)
    if question is None:
        raise ValueError(f"no question: one of the keys {', '.join(_QUESTIONS)} is needed")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"the question must be a text, not {json.dumps(question)[:60]}")
    answer = _first(entry, _ANSWERS, None)
    used = {*_present(entry, _IDS), *_present(entry, _QUESTIONS), *_present(entry, _ANSWERS)}
    return BenchmarkTask(
        str(identity), question, answer, {key: value for key, value in entry.items() if key not in used}
    )


def _first(entry: dict[str, Any], names: Sequence[str], default: Any) -> Any:
    return next((entry[name] for name in names if name in entry), default)


def _present(entry: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the name under which the entry has the thing; the other names, if present too, stay metadata."""
    return [name for name in names if name in entry][:1]
