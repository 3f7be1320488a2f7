"""OSWorld's file formats: task files, and the result layout of its own runner as an export format."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.envs.base import LoadedTask
from paragent.errors import BadData, ConfigError
from paragent.store import RolloutStatus
from paragent.store.directory import file_name
from paragent.store.formats import ExportFormat
from paragent.store.formats.conversations import dictionaries
from paragent.store.formats.images import image_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.store.formats import ExportedRollout, RunExport

__all__ = ["OSWorldFormat", "is_index", "read_index", "read_tasks"]

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


class OSWorldFormat(ExportFormat):
    """The result layout of OSWorld's own runner; cancelled rollouts are left out.

    The folder of a result is `<action space>/<observation type>/<model>/<domain>/<id>/`, with `traj.jsonl`, `result.txt`, the
    screenshots and the recording. Runs of other environments have no action space: their paths begin with the domain.
    """

    folder = True

    def write(self, run: RunExport, target: Path) -> None:
        config = run.config()
        home = target
        if config.get("mode") == "osworld":
            names = (str(config.get(name) or "default") for name in ("action_space", "observation_type", "model"))
            home = target.joinpath(*(file_name(name) for name in names))
            home.mkdir(parents=True, exist_ok=True)
            (home / "args.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
        (target / "summary").mkdir(parents=True, exist_ok=True)
        with (target / "summary" / "results.json").open("w", encoding="utf-8") as summary:
            separator = "["
            for rollout in run.rollouts():
                if rollout.result.status is RolloutStatus.CANCELLED:
                    run.leave_out(rollout, "OSWorld would count cancelled rollouts as a score of 0")
                    continue
                summary.write(f"{separator}\n  {json.dumps(_write_result(rollout, home))}")
                separator = ","
            summary.write("[]\n" if separator == "[" else "\n]\n")


def _write_result(rollout: ExportedRollout, home: Path) -> dict[str, Any]:
    """Write the files of a result and return its line of the summary."""
    result, trajectory = rollout.result, rollout.trajectory
    domain = str(rollout.task.metadata.get("domain") or "default")
    folder = home / file_name(domain) / file_name(result.label)
    folder.mkdir(parents=True, exist_ok=True)
    lines = _step_lines(trajectory)
    if result.error:
        lines.append({"Error": result.error})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "traj.jsonl").write_text(text, encoding="utf-8")
    (folder / "result.txt").write_text(f"{result.score or 0.0}\n")
    _copy_files(rollout.images, folder, trajectory)
    return {"domain": domain, "task_id": result.task, "score": result.score or 0.0, "status": result.status}


def _copy_files(source: Path, target: Path, trajectory: dict[str, Any]) -> None:
    """Copy the images of a trajectory, and its recording under OSWorld's file name."""
    for name in (
        name for message in dictionaries(trajectory.get("messages")) for name in image_names(message, "images", "kept")
    ):
        if file_name(name) == name and (source / name).exists():
            shutil.copyfile(source / name, target / name)
    if recordings := sorted(source.glob("recording_*.mp4")):
        shutil.copyfile(recordings[-1], target / "recording.mp4")


def _step_lines(trajectory: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one line for each action.

    A call is matched with its result by its turn and position, because some endpoints repeat call ids.
    """
    lines: list[dict[str, Any]] = []
    steps = {(step.get("turn"), step.get("call")): step for step in dictionaries(trajectory.get("steps"))}
    turn = 0
    messages = dictionaries(trajectory.get("messages"))
    for index, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        turn += 1
        calls: list[dict[str, Any] | None] = [*dictionaries(message.get("tool_calls"))]
        for offset, call in enumerate(calls or [None], 1):
            reply = messages[index + offset] if call and index + offset < len(messages) else {}
            step = steps.get((turn, call.get("id")), {}) if call else {}
            extras = step.get("extras") or {}
            line = {"step_num": len(lines) + 1, "action_timestamp": step.get("moment")}
            line["action"] = extras.get("action", call.get("function")) if call else None
            line |= {"response": message.get("content"), "reward": 0, "done": call is None or bool(extras.get("done"))}
            line["info"] = {"result": reply.get("content")} if call else {}
            line["screenshot_file"] = next(iter(image_names(reply, "images", "kept")), None)
            lines.append(line)
    return lines
