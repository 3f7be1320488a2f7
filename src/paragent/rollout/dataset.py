"""Benchmarks: JSON and JSON lines, plain or gzipped, a format of the environment, or a table (see `tables.py`)."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import re
import shlex
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from paragent._internal.file_errors import no_file, reason_of
from paragent._internal.text import counted, read_json, suggestion, well_formed_data
from paragent.envs import Environment
from paragent.errors import BadData, ConfigError, UsageError
from paragent.rollout.tables import is_hub, is_table, table_rows
from paragent.tasks import BenchmarkTask, content_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from paragent.envs.base import LoadedTask

    LoadTasks = Callable[[Path, Any], Iterator[LoadedTask] | None]
    Problems = list[tuple[int, str]]

__all__ = ["Benchmark", "read_benchmark", "read_task"]

_ID_KEYS = ("id", "task_id")
_QUESTION_KEYS = ("question", "query", "input", "instruction", "prompt", "content", "text")
_ANSWER_KEYS = ("answer", "ground_truth", "expected")
_FIELDS = {"id": _ID_KEYS, "question": _QUESTION_KEYS, "answer": _ANSWER_KEYS}
"""What `--data-field` can name, and the usual names of it."""
_GZIP_MAGIC = b"\x1f\x8b"
_MOST_NAMED = 10
"""Tasks that an error message names."""
_EXAMPLE = '{"question": "2 + 2?", "answer": "4"}'


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The selected tasks of a file. Every iteration reads the file again, so the tasks are never all in memory."""

    path: Path
    size: int
    digest: str
    """Of the selected tasks, in order."""
    limit: int | None
    selected: frozenset[str]
    """The ids given with `--task-id`; empty: all."""
    skipped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The ids of tasks that the environment does not support, and what each of them needs."""
    load_tasks: LoadTasks = Environment.load_tasks
    """Reads the environment's own dataset format."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The names of fields given with `--data-field`."""
    answers: int = 0
    """How many of the tasks have an expected answer."""

    @classmethod
    def empty(cls) -> Benchmark:
        """Return a benchmark without tasks, for a run whose tasks arrive while it runs."""
        return cls(Path(os.devnull), 0, "", None, frozenset())

    def __iter__(self) -> Iterator[BenchmarkTask]:
        tasks = (read.task for read in _tasks(self.path, [], self.load_tasks, self.fields))
        selected = (task for task in tasks if not self.selected or task.id in self.selected)
        return itertools.islice((task for task in selected if task.id not in self.skipped), self.limit)


def read_benchmark(
    path: Path,
    *,
    limit: int | None = None,
    task_ids: Sequence[str] = (),
    lacking: Callable[[BenchmarkTask], Sequence[str]] = lambda _: (),
    skip: bool = False,
    load_tasks: LoadTasks = Environment.load_tasks,
    fields: Mapping[str, str] | None = None,
) -> Benchmark:
    """Check a whole file, or a dataset of the hub, and return its tasks.

    Args:
        path: the file; `hf:NAME` for a dataset of the hub.
        limit: the maximum number of tasks.
        task_ids: the ids to select; empty: all tasks.
        lacking: returns what a task needs and the environment does not have.
        skip: skip such tasks, instead of raising an error.
        load_tasks: reads the environment's own dataset format, see `Environment.load_tasks`.
        fields: the names of the fields with the question, the answer and the id, if they are others than usual.

    Raises:
        ConfigError: the file does not exist or cannot be read.
        BadData: some lines are not tasks; the message has the number of each line and the reason.
        UsageError: no task is selected, a selected id does not exist, or a task is not supported.
    """
    if not is_hub(path) and not path.is_file():
        raise ConfigError(f"--data: {no_file(path)}")
    fields = checked_fields(fields or {})
    problems: Problems = []
    seen: dict[str, int] = {}
    unsupported: dict[str, Sequence[str]] = {}
    selected = frozenset(task_ids)
    digest = hashlib.sha256()
    size = answers = 0
    for read in _unique_tasks(_tasks(path, problems, load_tasks, fields), problems, seen):
        task = read.task
        if (not selected or task.id in selected) and (limit is None or size < limit):
            if needs := lacking(task):
                unsupported[task.id] = needs
                continue
            digest.update(_digest(read).encode())
            size += 1
            answers += bool(task.references)
    if problems:
        raise BadData(str(path), sorted(problems))
    if missing := sorted(selected - set(seen)):
        hint = suggestion(missing[0], seen) or f"; its first ids are {', '.join(list(seen)[:_MOST_NAMED])}"
        raise UsageError(f"--task-id: {path} has no task {missing[0]!r}{hint if seen else ''}")
    if unsupported and not skip:
        raise UsageError(_unsupported_message(path, unsupported))
    if not size:
        rest = (
            " that this environment supports"
            if unsupported
            else f"; write one JSON object per line, such as {_EXAMPLE}"
        )
        raise UsageError(f"{path} has no tasks{rest}")
    return Benchmark(path, size, digest.hexdigest(), limit, selected, unsupported, load_tasks, fields, answers)


class _ReadTask(NamedTuple):
    """A task of a file."""

    line: int
    task: BenchmarkTask
    has_id: bool
    """Whether the id is that of the file, and not made from the content."""


def _unique_tasks(tasks: Iterator[_ReadTask], problems: Problems, seen: dict[str, int]) -> Iterator[_ReadTask]:
    """Yield the tasks of a file; append duplicate ids to `problems`, and the line of each id to `seen`."""
    for read in tasks:
        task = read.task
        if task.id in seen:
            first = f"duplicate id {task.id!r}, first used in line {seen[task.id]}"
            problems.append((read.line, f"{first}; give each task an id of its own, or none"))
        else:
            seen[task.id] = read.line
            yield read


def _unsupported_message(path: Path, unsupported: Mapping[str, Sequence[str]]) -> str:
    named = "".join(f"\n  {task}: needs {', '.join(needs)}" for task, needs in list(unsupported.items())[:_MOST_NAMED])
    more = f"\n  ... and {len(unsupported) - _MOST_NAMED} more" if len(unsupported) > _MOST_NAMED else ""
    return (
        f"{counted(len(unsupported), 'task')} of {path} not supported here; nothing was started:{named}{more}\n"
        "Use --skip-unsupported to run the others"
    )


def _digest(read: _ReadTask) -> str:
    """Return a digest of all fields of a task, with its place instead of an id that was made.

    The digest is part of a run's identity: runs of version 0.2, which used the place as the id, can be continued.
    """
    task, identity = read.task, read.task.id if read.has_id else f"item_{read.line}"
    text = json.dumps([identity, task.question, task.answer, task.metadata], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tasks(path: Path, problems: Problems, load_tasks: LoadTasks, fields: Mapping[str, str]) -> Iterator[_ReadTask]:
    """Yield the tasks of a file; append to `problems` why other lines are not tasks."""
    entries = enumerate(table_rows(path), 1) if is_table(path) else _entries(path, problems, load_tasks)
    made: Counter[str] = Counter()
    for line, entry in entries:
        try:
            given = with_fields(entry, fields) if fields else entry
            task, has_id = read_task(given), _has_id(given)
        except ValueError as error:
            problems.append((line, str(error)))
            continue
        if not has_id:
            made[task.id] += 1
            if (ordinal := made[task.id]) > 1:
                task = replace(task, id=f"{task.id}-{ordinal}")
        yield _ReadTask(line, task, has_id)


def checked_fields(fields: Mapping[str, str]) -> Mapping[str, str]:
    """Return the fields of `--data-field`, if their names are known.

    Raises:
        ConfigError: one is not.
    """
    for name, source in fields.items():
        if name not in _FIELDS or not source:
            raise ConfigError(
                f"--data-field must be of the form question=NAME, answer=NAME or id=NAME, not '{name}={source}'"
            )
    return fields


def with_fields(entry: Any, fields: Mapping[str, str]) -> Any:
    """Return an entry whose question, answer and id are taken from the fields that `--data-field` names.

    A name such as `answers.text` is that of a field inside of another one.

    Raises:
        ValueError: the entry does not have such a field.
    """
    if not isinstance(entry, dict):
        return entry
    found = {name: value for name, value in entry.items() if name not in fields.values()}
    for name, source in fields.items():
        for other in _FIELDS[name]:
            if other in found:
                found[f"original_{other}"] = found.pop(other)
        found[name] = _field(entry, source)
    return found


def _field(entry: dict[str, Any], source: str) -> Any:
    value: Any = entry.get(source, entry)
    if value is entry:
        for part in source.split("."):
            if not isinstance(value, dict) or part not in value:
                raise ValueError(f"no field {source!r}, which --data-field names; there are: {', '.join(entry)}")
            value = value[part]
    return value


def _entries(path: Path, problems: Problems, load_tasks: LoadTasks) -> Iterator[tuple[int, Any]]:
    """Yield the JSON values of a file with their line numbers.

    Raises:
        ConfigError: the file cannot be read, or is not text.
    """
    try:
        yield from _read(path, problems, load_tasks)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(
            f"--data: {path} cannot be read as UTF-8 JSON, plain or gzipped: {reason_of(error)}. Save the tasks as JSON lines, "
            "CSV or Parquet"
        ) from error


def _read(path: Path, problems: Problems, load_tasks: LoadTasks) -> Iterator[tuple[int, Any]]:
    with _open(path) as file:
        first = next((line for line in file if line.strip()), "")
        one_document = _is_one_document(path, first, load_tasks)
    with _open(path) as file:
        if one_document:
            yield from _document(path, file.read(), problems, load_tasks)
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, read_json(line)
            except ValueError as error:
                problems.append((number, f"not JSON: {error}{'' if problems else _form(path)}"))


def _form(path: Path) -> str:
    """Return what a file should have, for the first problem of a file that is not JSON."""
    if path.suffix.lower() in {"", ".gz", ".json", ".jsonl", ".ndjson"}:
        return f"; a line of JSON lines is an object such as {_EXAMPLE}"
    return f"; --data reads JSON lines, JSON, CSV, Parquet and Arrow files, by their suffix, and not {path.suffix}"


_LIST_IN_OBJECT = re.compile(r'\s*\{\s*"[^"]*"\s*:\s*\[')
"""The first line of an object over several lines whose first value is a list, such as an index of tasks."""


def _is_one_document(path: Path, first: str, load_tasks: LoadTasks) -> bool:
    """Return whether a file with this first line is one JSON document, and not JSON lines."""
    if first.lstrip().startswith("["):
        return True
    try:
        entry = json.loads(first)
    except ValueError:
        return first.strip() == "{" or '"items"' in first or _LIST_IN_OBJECT.match(first) is not None
    if isinstance(entry, dict) and isinstance(entry.get("items"), list):
        return True
    return load_tasks(path, entry) is not None


def _document(path: Path, text: str, problems: Problems, load_tasks: LoadTasks) -> Iterator[tuple[int, Any]]:
    """Yield the entries of a JSON document, numbered from 1, because their line numbers are unknown."""
    try:
        document = read_json(text)
    except json.JSONDecodeError as error:
        problems.append((error.lineno, f"not JSON: {error.msg}{_form(path)}"))
        return
    loaded = load_tasks(path, document)
    if loaded is not None:
        yield from _loaded(loaded, problems)
        return
    if isinstance(document, dict) and _first(document, _QUESTION_KEYS, None) is not None:
        document = [document]
    entries = document.get("items") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        problems.append(
            (1, 'neither a list of tasks, nor a task, nor {"items": [...]}, nor a format of this environment')
        )
        return
    yield from enumerate(entries, 1)


def _loaded(tasks: Iterator[LoadedTask], problems: Problems) -> Iterator[tuple[int, Any]]:
    """Yield the tasks that the environment has read, numbered from 1."""
    for number, one in enumerate(tasks, 1):
        if one.problem:
            problems.append((number, one.problem))
        else:
            yield number, well_formed_data(one.task)


def _open(path: Path) -> TextIO:
    with path.open("rb") as binary:
        zipped = binary.read(2) == _GZIP_MAGIC
    return gzip.open(path, "rt", encoding="utf-8-sig") if zipped else path.open(encoding="utf-8-sig")


def read_task(entry: Any, default_id: str = "") -> BenchmarkTask:
    """Return the task that an entry of a benchmark file describes.

    Args:
        entry: the entry.
        default_id: the id if the entry has none; empty: a digest of the content.

    Raises:
        ValueError: it is not a task; the message says why.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"a task must be an object, not {json.dumps(entry)[:60]}")  # noqa: TRY004 - one kind of problem
    identity = _first(entry, _ID_KEYS, default_id or None)
    if _has_id(entry) and (isinstance(identity, bool) or not isinstance(identity, str | int) or identity == ""):
        raise ValueError(f"the id must be a string or an integer, not {json.dumps(identity)[:60]}")
    question = _first(entry, _QUESTION_KEYS, None)
    if question is None:
        raise ValueError(_no_question(entry))
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"the question must be a non-empty string, not {json.dumps(question)[:60]}")
    answer = _first(entry, _ANSWER_KEYS, None)
    used = {*_used_key(entry, _ID_KEYS), *_used_key(entry, _QUESTION_KEYS), *_used_key(entry, _ANSWER_KEYS)}
    metadata = {key: value for key, value in entry.items() if key not in used}
    task = BenchmarkTask(str(identity), question, answer, metadata)
    return replace(task, id=content_digest(task)) if identity is None else task


def _no_question(entry: dict[str, Any]) -> str:
    required = f"no question: one of the keys {', '.join(_QUESTION_KEYS)} is required"
    usual = next((key for key in entry if str(key).strip().lower() in _QUESTION_KEYS), None)
    if usual is not None:
        return f"{required}; for {usual!r}, use --data-field question={shlex.quote(usual)}"
    return f"{required}, or --data-field question=NAME with one of its own: {', '.join(map(str, entry)) or 'none'}"


def _has_id(entry: dict[str, Any]) -> bool:
    return any(name in entry for name in _ID_KEYS)


def _first(entry: dict[str, Any], names: Sequence[str], default: Any) -> Any:
    return next((entry[name] for name in names if name in entry), default)


def _used_key(entry: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the first of several keys that an entry has; the other keys become metadata."""
    return [name for name in names if name in entry][:1]
