"""OSWorld's task files: one task, a list, one in each line, or the index `{domain: [id, ...]}` beside its folder of examples."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from paragent.errors import BadData, ConfigError

__all__ = ["indexed_tasks", "is_index", "read_tasks"]

_EXAMPLES = "examples"
"""The folder beside an index; a task is in `examples/<domain>/<id>.json`."""
_NEEDED = ("id", "instruction", "evaluator")


def read_tasks(path: str | Path) -> list[dict[str, Any]]:
    """Return the tasks of a file, as they are, in its order.

    A task that comes from an index gets the key `domain`, unless it has one.

    Raises:
        ConfigError: there is no such file.
        BadData: it is no task file, or tasks of it are missing or broken; each is named.
    """
    source = Path(path)
    if not source.is_file():
        raise ConfigError(f"--data: there is no file {source}")
    problems: list[tuple[int, str]] = []
    tasks = []
    for number, (task, problem) in enumerate(_entries(source), 1):
        lacking = problem or _lacking(task)
        if lacking:
            problems.append((number, lacking))
        else:
            tasks.append(task)
    if problems:
        raise BadData(str(source), problems)
    return tasks


def _entries(source: Path) -> list[tuple[Any, str]]:
    """Return each task with an empty text, or nothing with the reason why it is not there."""
    document, problem = _document(source)
    if problem:
        return _lines(source) or [(None, problem)]
    if isinstance(document, list):
        return [(task, "") for task in document]
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        return [(task, "") for task in document["items"]]
    if isinstance(document, dict) and "evaluator" not in document and "instruction" not in document:
        return indexed_tasks(source, document)
    return [(document, "")]


def _lines(source: Path) -> list[tuple[Any, str]]:
    """Return the tasks of a file with one in each line, as `_entries`; nothing if its first line is no task."""
    if not os.access(source, os.R_OK):
        return []
    entries: list[tuple[Any, str]] = []
    for line in source.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        try:
            entries.append((json.loads(line), ""))
        except ValueError as error:
            entries += [(None, f"no JSON: {error}")] if line.strip() else []
    return entries if entries and isinstance(entries[0][0], dict) else []


def is_index(document: Any) -> bool:
    """Return whether this is an index: nothing but lists of ids by domain."""
    return (
        isinstance(document, dict)
        and bool(document)
        and "items" not in document
        and all(isinstance(ids, list) and all(isinstance(one, str) for one in ids) for ids in document.values())
    )


def indexed_tasks(source: Path, index: dict[str, Any]) -> list[tuple[Any, str]]:
    """Return each task of the index in the file `source` with an empty text, or nothing with the reason why it is not there."""
    entries: list[tuple[Any, str]] = []
    for domain, identities in index.items():
        if not isinstance(identities, list):
            entries.append((None, f"{domain!r} is no list of task ids"))
            continue
        for identity in identities:
            if not _is_name(domain) or not _is_name(identity):
                entries.append((None, f"{domain!r}/{identity!r} cannot be the name of a file"))
                continue
            task, problem = _document(source.parent / _EXAMPLES / domain / f"{identity}.json")
            entries.append(({"domain": domain, **task} if isinstance(task, dict) else task, problem))
    return entries


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and text not in {"", ".", ".."} and "/" not in text and "\0" not in text


def _document(path: Path) -> tuple[Any, str]:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig")), ""
    except FileNotFoundError:
        return None, f"there is no file {path}"
    except (OSError, ValueError) as error:
        return None, f"{path.name} cannot be read: {error}"


def _lacking(task: Any) -> str:
    if not isinstance(task, dict):
        return f"a task is an object, not {json.dumps(task)[:60]}"
    lacking = [key for key in _NEEDED if key not in task]
    if lacking:
        return f"the task {task.get('id', '')!r} has no {', '.join(lacking)}"
    if not isinstance(task["evaluator"], dict):
        return f"the evaluator of the task {task['id']!r} is no object"
    return ""
