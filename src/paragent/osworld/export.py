"""Export format `osworld`: a run's results in the layout of OSWorld's own runner."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from paragent.messages import images_in
from paragent.store.directory import file_name, images_folder
from paragent.store.export import results_of

if TYPE_CHECKING:
    from pathlib import Path

    from paragent.store.journal import Journal

__all__ = ["export_osworld"]


def export_osworld(journal: Journal, target: Path) -> int:
    """Write every result of a run below the folder `target` and return how many there are.

    The folder of a result is `<action space>/<observation type>/<model>/<domain>/<id>/`, with `traj.jsonl`, `result.txt`, the
    screenshots and the recording. Runs of other environments have no action space: their paths begin with the domain.
    """
    config = _config(journal)
    results = []
    home = target
    if config.get("mode") == "osworld":
        names = (str(config.get(name) or "default") for name in ("action_space", "observation_type", "model"))
        home = target.joinpath(*(file_name(name) for name in names))
        home.mkdir(parents=True, exist_ok=True)
        (home / "args.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
    for task, result, trajectory in results_of(journal):
        domain = str((task.get("metadata") or {}).get("domain") or "default")
        name = result.task if result.attempt == 1 else f"{result.task}#{result.attempt}"
        folder = home / file_name(domain) / file_name(name)
        folder.mkdir(parents=True, exist_ok=True)
        lines = _step_lines(trajectory)
        if result.error:
            lines.append({"Error": result.error})
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / "traj.jsonl").write_text(text, encoding="utf-8")
        (folder / "result.txt").write_text(f"{result.score or 0.0}\n")
        _copy_files(images_folder(journal.folder, result.task, result.attempt), folder, trajectory)
        results.append(
            {"domain": domain, "task_id": result.task, "score": result.score or 0.0, "status": result.status}
        )
    (target / "summary").mkdir(parents=True, exist_ok=True)
    (target / "summary" / "results.json").write_text(json.dumps(results, indent=2))
    return len(results)


def _config(journal: Journal) -> dict[str, Any]:
    """Return the run's settings; empty if they cannot be read."""
    try:
        config: dict[str, Any] = json.loads((journal.folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config


def _copy_files(source: Path, target: Path, trajectory: dict[str, Any]) -> None:
    """Copy the images of a trajectory, and its recording under OSWorld's file name."""
    for name in (name for message in trajectory.get("messages", ()) for name in images_in(message)):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    if recordings := sorted(source.glob("recording_*.mp4")):
        shutil.copyfile(recordings[-1], target / "recording.mp4")


def _step_lines(trajectory: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one line for each action.

    A call is matched with its result by its turn and position, because some endpoints repeat call ids.
    """
    lines: list[dict[str, Any]] = []
    steps = {(step.get("turn"), step.get("call")): step for step in trajectory.get("steps", ())}
    turn = 0
    messages = trajectory.get("messages", ())
    for index, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        turn += 1
        for offset, call in enumerate(message.get("tool_calls") or [None], 1):
            reply = messages[index + offset] if call and index + offset < len(messages) else {}
            step = steps.get((turn, call["id"]), {}) if call else {}
            extras = step.get("extras") or {}
            line = {"step_num": len(lines) + 1, "action_timestamp": step.get("moment")}
            line["action"] = extras.get("action", call["function"]) if call else None
            line |= {"response": message.get("content"), "reward": 0, "done": call is None or bool(extras.get("done"))}
            line["info"] = {"result": reply.get("content")} if call else {}
            line["screenshot_file"] = next(iter(images_in(reply)), None)
            lines.append(line)
    return lines
