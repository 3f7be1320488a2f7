"""Export format `inspect`: an `.eval` log of inspect_ai, a ZIP archive of JSON documents.

Written without inspect's packages, whose pinned dependencies exclude current versions of those of paragent; the tests open the
logs with inspect's own library. Attempts are epochs. Each model call is an event with the messages that it was sent, so that
branches are complete too; `messages` of a sample is the conversation of branch 0.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from typing import TYPE_CHECKING, Any, TextIO

from paragent._internal.text import well_formed
from paragent.store.formats.atif import iso_time
from paragent.store.formats.base import ExportFormat
from paragent.store.formats.inspect_samples import inspect_sample, usage_of
from paragent.store.summary import ATTEMPTS, summarise

if TYPE_CHECKING:
    from pathlib import Path

    from paragent.store.formats.base import RunExport
    from paragent.store.summary import Summary

__all__ = ["InspectFormat"]

_VERSION = 2
"""The version of inspect's log format."""
_SUMMARY_FIELDS = (
    "id", "epoch", "input", "target", "scores", "model_usage", "started_at", "completed_at", "total_time", "working_time",
    "uuid",
)  # fmt: skip
_SHORT = 1024
"""Characters of a text in the list of samples; inspect has the same limit."""


class InspectFormat(ExportFormat):
    """One archive with a document for each sample, and a list of all samples."""

    def write(self, run: RunExport, target: Path) -> None:
        attempts = int(run.journal.meta(ATTEMPTS) or 1)
        summary = summarise(run.journal, attempts)
        spec = _spec(run, summary)
        plan = {"name": "plan", "steps": [], "config": {}}
        with (
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
            tempfile.TemporaryFile("w+", encoding="utf-8") as summaries,
        ):
            _add(archive, "_journal/start.json", {"version": _VERSION, "eval": spec, "plan": plan})
            separator = "["
            for rollout in run.rollouts():
                sample = inspect_sample(rollout, spec["model"])
                _add(archive, f"samples/{_file_of(sample['id'])}_epoch_{sample['epoch']}.json", sample)
                summaries.write(separator + well_formed(json.dumps(_summary(sample), ensure_ascii=False)))
                separator = ","
            summaries.write("[]" if separator == "[" else "]")
            _add_file(archive, "summaries.json", summaries)
            header = {"version": _VERSION, "status": "success", "eval": spec, "plan": plan}
            _add(archive, "header.json", header | _results(run, summary, attempts, spec["model"]))


def _add(archive: zipfile.ZipFile, name: str, content: Any) -> None:
    archive.writestr(name, well_formed(json.dumps(content, ensure_ascii=False)))


def _add_file(archive: zipfile.ZipFile, name: str, file: TextIO) -> None:
    file.seek(0)
    with archive.open(name, "w", force_zip64=True) as member:
        while part := file.read(1 << 20):
            member.write(part.encode())


def _file_of(sample: str) -> str:
    """Return the id of a sample as part of a name in the archive, which inspect makes of the id unchanged."""
    return well_formed(sample)


def _spec(run: RunExport, summary: Summary) -> dict[str, Any]:
    config = run.config()
    identity = hashlib.sha256(f"{run.name}:{run.journal.meta('identity')}".encode()).hexdigest()[:22]
    started = run.journal.rows("SELECT min(started), max(ended) FROM results WHERE started > 0")[0][0]
    return {
        "eval_id": identity,
        "run_id": identity,
        "task_id": identity,
        "created": iso_time(started or 0.0),
        "task": str(config.get("mode") or run.name),
        "task_version": 0,
        "dataset": {"name": run.name, "location": str(config.get("data") or ""), "samples": summary.tasks},
        "model": str(config.get("model") or "unknown"),
        "config": {"epochs": int(run.journal.meta(ATTEMPTS) or 1)},
        "packages": {},
        "metadata": {"paragent": {"run": run.name, "config": config}},
    }


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a sample in the list of samples."""
    found = {name: sample[name] for name in _SUMMARY_FIELDS if name in sample}
    found["input"] = found["input"][:_SHORT] if isinstance(found["input"], str) else found["input"]
    scores = sample.get("scores") or {}
    found["scores"] = {name: {"value": score["value"]} for name, score in scores.items()}
    found |= {"completed": "error" not in sample, "message_count": len(sample["messages"])}
    if "error" in sample:
        found["error"] = sample["error"]["message"][:_SHORT]
    if "limit" in sample:
        found["limit"] = sample["limit"]["type"]
    return found


def _results(run: RunExport, summary: Summary, attempts: int, model: str) -> dict[str, Any]:
    times = run.journal.rows("SELECT min(started), max(ended) FROM results WHERE started > 0")[0]
    scores = [
        {
            "name": name,
            "scorer": name,
            "metrics": {"mean": {"name": "mean", "value": mean}},
        }
        for name, mean in summary.means.items()
        if mean is not None
    ]
    [(cached, reasoning)] = run.journal.rows("SELECT sum(cached_tokens), sum(reasoning_tokens) FROM results")
    usage = usage_of(
        {
            "prompt_tokens": summary.prompt_tokens,
            "completion_tokens": summary.completion_tokens,
            "cached_tokens": cached,
            "reasoning_tokens": reasoning,
        }
    )
    return {
        "results": {
            "total_samples": summary.tasks * attempts,
            "completed_samples": summary.done,
            "scores": scores,
        },
        "stats": {
            "started_at": iso_time(times[0]) if times[0] else "",
            "completed_at": iso_time(times[1]) if times[1] else "",
            "model_usage": {model: usage} if usage else {},
        },
    }
