"""OSWorld's task files: one task, a list, JSON lines, or the index `{domain: [id, ...]}` beside its folder of examples."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.envs.base import LoadedTask
from paragent.errors import BadData, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_index", "read_index", "read_tasks"]

_EXAMPLES = "examples"
"""The folder beside an index; a task is in `examples/<domain>/<id>.json`."""
_REQUIRED = ("id", "instruction", "evaluator")


def read_tasks(path: str | Path) -> list[dict[str, Any]]:
    """Return the tasks of a file, unchanged, in the order of the file.

    A task that comes from an index gets the key `domain`, unless it has one.

    Raises:
        ConfigError: the file does not exist.
        BadData: it is not a task file, or some of its tasks are missing or malformed; each is named.
    """
    source = Path(path)
    if not source.is_file():
        raise ConfigError(f"--data: there is no file {source}")
    problems: list[tuple[int, str]] = []
    tasks = []
    for number, loaded in enumerate(_load(source), 1):
        problem = loaded.problem or _problem(loaded.task)
        if problem:
            problems.append((number, problem))
        else:
            tasks.append(loaded.task)
    if problems:
        raise BadData(str(source), problems)
    return tasks


def is_index(document: Any) -> bool:
    """Return whether a document is an index: an object whose values are all lists of ids."""
    return (
        isinstance(document, dict)
        and bool(document)
        and "items" not in document
        and all(isinstance(ids, list) and all(isinstance(one, str) for one in ids) for ids in document.values())
    )


def read_index(source: Path, index: dict[str, Any]) -> Iterator[LoadedTask]:
    """Yield the tasks that an index names, each read from its own file beside the index file `source`."""
    for domain, ids in index.items():
        if not isinstance(ids, list):
            yield LoadedTask(problem=f"{domain!r} is not a list of task ids")
            continue
        for task_id in ids:
            if not _is_name(domain) or not _is_name(task_id):
                yield LoadedTask(problem=f"{domain!r}/{task_id!r} cannot be the name of a file")
                continue
            loaded = _read_document(source.parent / _EXAMPLES / domain / f"{task_id}.json")
            task = loaded.task
            yield LoadedTask({"domain": domain, **task} if isinstance(task, dict) else task, loaded.problem)


def _load(source: Path) -> list[LoadedTask]:
    loaded = _read_document(source)
    document = loaded.task
    if loaded.problem:
        return _read_lines(source) or [loaded]
    if isinstance(document, list):
        return [LoadedTask(task) for task in document]
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        return [LoadedTask(task) for task in document["items"]]
    if isinstance(document, dict) and "evaluator" not in document and "instruction" not in document:
        return list(read_index(source, document))
    return [loaded]


def _read_lines(source: Path) -> list[LoadedTask]:
    """Return the tasks of a JSON lines file; an empty list if the first line is not an object."""
    if not os.access(source, os.R_OK):
        return []
    tasks: list[LoadedTask] = []
    for line in source.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        try:
            tasks.append(LoadedTask(json.loads(line)))
        except ValueError as error:
            tasks += [LoadedTask(problem=f"invalid JSON: {error}")] if line.strip() else []
    return tasks if tasks and isinstance(tasks[0].task, dict) else []


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and text not in {"", ".", ".."} and "/" not in text and "\0" not in text


def _read_document(path: Path) -> LoadedTask:
    try:
        return LoadedTask(json.loads(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError:
        return LoadedTask(problem=f"there is no file {path}")
    except (OSError, ValueError) as error:
        return LoadedTask(problem=f"{path.name} cannot be read: {error}")


def _problem(task: Any) -> str:
    """Return what is wrong with a task, empty if nothing."""
    if not isinstance(task, dict):
        return f"a task must be an object, not {json.dumps(task)[:60]}"
    missing = [key for key in _REQUIRED if key not in task]
    if missing:
        return f"the task {task.get('id', '')!r} has no {', '.join(missing)}"
    if not isinstance(task["evaluator"], dict):
        return f"the evaluator of the task {task['id']!r} is not an object"
    return ""
