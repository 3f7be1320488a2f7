"""A run's results in forms that other tools read."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import import_object
from paragent.errors import MissingExtra
from paragent.messages import images_in, with_images
from paragent.store.directory import images_folder, plain_name, result_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from paragent.store.journal import Journal
    from paragent.store.records import RolloutResult

__all__ = ["FORMATS", "export"]

_BATCH = 1000
"""Rows of a Parquet file that are held in memory at a time."""


def export(journal: Journal, form: str, target: Path) -> int:
    """Write every result of a run to `target` and return how many there were.

    Args:
        journal: of the run.
        form: a key of `FORMATS`.
        target: a file; for `osworld` a folder.

    Raises:
        MissingExtra: Parquet was asked for, and pyarrow is not installed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    return FORMATS[form](journal, target)


def _full(journal: Journal) -> Iterator[tuple[dict[str, Any], RolloutResult, dict[str, Any]]]:
    """Yield the task, the result and the trajectory of each result."""
    for number, play in journal.results():
        task = journal.task(play.task)
        yield task.body if task else {}, play, journal.trajectory(number) or {}


def _jsonl(journal: Journal, target: Path) -> int:
    count = 0
    with target.open("w", encoding="utf-8") as file:
        for task, play, trajectory in _full(journal):
            line = json.loads(result_line(play)) | {"item": task, "trajectory": trajectory}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


def _openai_chat(journal: Journal, target: Path) -> int:
    """One conversation a line, as fine-tuning takes it, with its score beside it."""
    count = 0
    with target.open("w", encoding="utf-8") as file:
        for _, play, trajectory in _full(journal):
            if not trajectory.get("messages"):
                continue
            folder = images_folder(journal.folder, play.task, play.attempt)
            line: dict[str, Any] = {"messages": with_images(trajectory["messages"], _Reader(folder))}
            if trajectory.get("tools"):
                line["tools"] = trajectory["tools"]
            line["metadata"] = {"task": play.task, "attempt": play.attempt, "score": play.score}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


class _Reader:
    """Reads pictures of a folder; one that somebody has deleted is empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str) -> bytes:
        path = self._folder / name
        return path.read_bytes() if path.exists() else b""


def _parquet(journal: Journal, target: Path) -> int:
    try:
        arrow = import_object("pyarrow:Table")
        writer_class = import_object("pyarrow.parquet:ParquetWriter")
    except ModuleNotFoundError as error:
        raise MissingExtra("the format 'parquet'", "parquet", str(error.name)) from error
    writer: Any = None
    count = 0
    try:
        for rows in _batches(journal):
            table = arrow.from_pylist(rows, schema=None if writer is None else writer.schema)
            if writer is None:
                table = arrow.from_pylist(rows, schema=_schema())
                writer = writer_class(target, table.schema)
            writer.write_table(table)
            count += len(rows)
        if writer is None:
            writer = writer_class(target, _schema())
    finally:
        if writer is not None:
            writer.close()
    return count


def _schema() -> Any:
    schema, text = import_object("pyarrow:schema"), import_object("pyarrow:string")()
    whole, real = import_object("pyarrow:int64")(), import_object("pyarrow:float64")()
    kinds = {"attempt": whole, "turns": whole, "tool_calls": whole, "requests": whole, "prompt_tokens": whole}
    kinds |= {"judge_prompt_tokens": whole, "judge_completion_tokens": whole}
    kinds |= {"completion_tokens": whole, "score": real, "seconds": real, "waited": real, "ended": real}
    names = "task attempt status score scores answer ending kind error turns tool_calls requests prompt_tokens "
    names += "completion_tokens judge_prompt_tokens judge_completion_tokens "
    names += "seconds waited ended worker question expected trajectory"
    return schema([(name, kinds.get(name, text)) for name in names.split()])


def _batches(journal: Journal) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for task, play, trajectory in _full(journal):
        row = json.loads(result_line(play))
        row["scores"] = json.dumps(row["scores"])
        row |= {"question": task.get("question"), "expected": json.dumps(task.get("answer"), ensure_ascii=False)}
        row["trajectory"] = json.dumps(trajectory, ensure_ascii=False)
        rows.append(row)
        if len(rows) == _BATCH:
            yield rows
            rows = []
    if rows:
        yield rows


def _osworld(journal: Journal, target: Path) -> int:
    """OSWorld's layout: `<action space>/<observation type>/<model>/<domain>/<id>/` with `traj.jsonl`, `result.txt`, pictures.

    Runs that were no desktop's have no action space, and begin with the domain.
    """
    config = _config(journal)
    listed = []
    home = target
    if config.get("mode") == "osworld":
        names = (str(config.get(name) or "default") for name in ("action_space", "observation_type", "model"))
        home = target.joinpath(*(plain_name(name) for name in names))
        home.mkdir(parents=True, exist_ok=True)
        (home / "args.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
    for task, play, trajectory in _full(journal):
        domain = str((task.get("metadata") or {}).get("domain") or "default")
        name = play.task if play.attempt == 1 else f"{play.task}#{play.attempt}"
        folder = home / plain_name(domain) / plain_name(name)
        folder.mkdir(parents=True, exist_ok=True)
        lines = _osworld_steps(trajectory)
        if play.error:
            lines.append({"Error": play.error})
        told = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / "traj.jsonl").write_text(told, encoding="utf-8")
        (folder / "result.txt").write_text(f"{play.score or 0.0}\n")
        _copy_files(images_folder(journal.folder, play.task, play.attempt), folder, trajectory)
        listed.append({"domain": domain, "task_id": play.task, "score": play.score or 0.0, "status": play.status})
    (target / "summary").mkdir(parents=True, exist_ok=True)
    (target / "summary" / "results.json").write_text(json.dumps(listed, indent=2))
    return len(listed)


def _config(journal: Journal) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((journal.folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config


def _copy_files(source: Path, target: Path, trajectory: dict[str, Any]) -> None:
    """Copy the pictures that a trajectory names, and its recording under the name that OSWorld gives it."""
    named = [name for message in trajectory.get("messages", ()) for name in images_in(message)]
    for name in named:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    if recordings := sorted(source.glob("recording_*.mp4")):
        shutil.copyfile(recordings[-1], target / "recording.mp4")


def _osworld_steps(trajectory: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line for each action; calls and their results belong together by their turn, for some endpoints repeat ids."""
    lines: list[dict[str, Any]] = []
    steps = {(step.get("turn"), step.get("call")): step for step in trajectory.get("steps", ())}
    turn = 0
    messages = trajectory.get("messages", ())
    for number, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        turn += 1
        for place, call in enumerate(message.get("tool_calls") or [None], 1):
            reply = messages[number + place] if call and number + place < len(messages) else {}
            step = steps.get((turn, call["id"]), {}) if call else {}
            extras = step.get("extras") or {}
            line = {"step_num": len(lines) + 1, "action_timestamp": step.get("moment")}
            line["action"] = extras.get("action", call["function"]) if call else None
            line |= {"response": message.get("content"), "reward": 0, "done": call is None or bool(extras.get("done"))}
            line["info"] = {"result": reply.get("content")} if call else {}
            line["screenshot_file"] = next(iter(images_in(reply)), None)
            lines.append(line)
    return lines


FORMATS: dict[str, Callable[[Journal, Path], int]] = {
    "jsonl": _jsonl,
    "openai-chat": _openai_chat,
    "osworld": _osworld,
    "parquet": _parquet,
}
