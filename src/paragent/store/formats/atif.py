"""Export format `atif`: trajectories in ATIF 1.8, in the layout of a Harbor job.

::

    <target>/<task>__<attempt>/
        agent/trajectory.json   the trajectory
        agent/images/           what the agent saw
        result.json             score, failure, times and token counts, as Harbor's viewer reads them

A message of the assistant and the results of its tool calls are one step. Branches are embedded subagent trajectories, in which
the messages of the parent are marked as copied. What ATIF has no field for is in `extra`.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paragent._internal.text import well_formed
from paragent.errors import UsageError
from paragent.store.directory import file_name
from paragent.store.formats.atif_steps import AtifSteps
from paragent.store.formats.base import ExportFormat
from paragent.store.formats.conversations import BranchMessages, dictionaries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paragent.store.formats.base import ExportedRollout, RunExport

__all__ = ["RESULT_FIELDS", "SCHEMA", "AtifFormat", "iso_time"]

SCHEMA = "ATIF-v1.8"
RESULT_FIELDS = (
    "attempt", "status", "score", "scores", "answer", "ending", "kind", "error", "turns", "tool_calls", "requests",
    "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "judge_prompt_tokens",
    "judge_completion_tokens", "seconds", "waited", "started", "ended", "worker", "machine",
)  # fmt: skip
"""The fields of a result that are stored in `extra`."""


class AtifFormat(ExportFormat):
    """A folder with one trajectory for each result."""

    folder = True

    def write(self, run: RunExport, target: Path) -> None:
        if target.exists() and any(target.iterdir()):
            raise UsageError(f"--output: {target} is not empty; choose another folder")
        target.mkdir(exist_ok=True)
        config = run.config()
        agent = {
            "name": str(config.get("agent") or "paragent"),
            "version": str(config.get("version") or "unknown"),
            "model_name": str(config.get("model") or "unknown"),
        }
        prices = run.prices()
        for rollout in run.rollouts():
            result = rollout.result
            folder = target / file_name(f"{result.task}__{result.attempt}")
            (folder / "agent").mkdir(parents=True)
            trajectory = _Trajectory(rollout, run.name, agent, prices, folder / "agent").build()
            _write(folder / "agent" / "trajectory.json", trajectory)
            _write(folder / "result.json", _trial_result(rollout, folder, agent, trajectory["final_metrics"]))


def iso_time(seconds: float) -> str:
    """Return a time in seconds since the epoch in the format of ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _write(path: Path, content: Any) -> None:
    path.write_text(well_formed(json.dumps(content, ensure_ascii=False)), encoding="utf-8")


class _Trajectory:
    """Builds the trajectory of one rollout; writes its images below `folder`."""

    def __init__(
        self,
        rollout: ExportedRollout,
        run: str,
        agent: dict[str, Any],
        prices: dict[str, float] | None,
        folder: Path,
    ) -> None:
        self._rollout = rollout
        self._session = f"{run}/{rollout.result.label}"
        tools = dictionaries(rollout.trajectory.get("tools"))
        self._agent = agent | ({"tool_definitions": tools} if tools else {})
        self._steps = AtifSteps(rollout, prices, folder)

    def build(self) -> dict[str, Any]:
        """Return the document."""
        rollout, result = self._rollout, self._rollout.result
        found = rollout.conversations() or [BranchMessages(0, 0, 0, [])]
        main = self._document(self._session, found[0])
        total = {
            "total_prompt_tokens": result.prompt_tokens,
            "total_completion_tokens": result.completion_tokens,
            "total_cached_tokens": result.cached_tokens,
            "total_cost_usd": self._steps.cost(result.prompt_tokens, result.completion_tokens),
            "total_steps": len(main["steps"]),
        }
        main["final_metrics"] = {name: value for name, value in total.items() if value is not None}
        facts = {name: getattr(result, name) for name in RESULT_FIELDS} | {"status": str(result.status)}
        task = rollout.task
        facts["task"] = {
            "id": result.task,
            "question": task.question,
            "answer": task.answer,
            "metadata": task.metadata,
        }
        facts["steps"] = list(_other_steps(rollout.trajectory, found))
        if problem := rollout.trajectory.get("unstorable"):
            facts["unstorable"] = problem
        main["extra"] = {"paragent": facts}
        if branches := [self._branch(one) for one in found[1:]]:
            main["subagent_trajectories"] = branches
        return main

    def _branch(self, one: BranchMessages) -> dict[str, Any]:
        document = self._document(f"{self._session}/branch-{one.branch}", one)
        document["extra"] = {"paragent": {"branch": one.branch, "parent": one.parent, "shared": one.shared}}
        return document

    def _document(self, identity: str, one: BranchMessages) -> dict[str, Any]:
        steps = self._steps.build(one)
        return {
            "schema_version": SCHEMA,
            "session_id": self._session,
            "trajectory_id": identity,
            "agent": self._agent,
            "steps": steps,
        }


def _other_steps(trajectory: dict[str, Any], found: list[BranchMessages]) -> Iterator[dict[str, Any]]:
    """Yield the steps that have no message: failed calls, scores, judges, machines, programs, tools called by the gateway."""
    with_message = {number for one in found for number in one.numbers.values()}
    for number, step in enumerate(dictionaries(trajectory.get("steps"))):
        if number not in with_message:
            yield {name: value for name, value in step.items() if name != "response"} | {"step": number}


def _trial_result(
    rollout: ExportedRollout, folder: Path, agent: dict[str, Any], totals: dict[str, Any]
) -> dict[str, Any]:
    """Return the result of a trial as Harbor stores it."""
    result = rollout.result
    times = {"started_at": iso_time(result.started or result.ended), "finished_at": iso_time(result.ended)}
    found: dict[str, Any] = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"paragent:{folder.parent.name}/{folder.name}")),
        "task_name": result.task,
        "trial_name": folder.name,
        "trial_uri": folder.name,
        "task_id": {"path": file_name(result.task)},
        "task_checksum": "",
        "config": {"task": {"path": file_name(result.task)}, "trial_name": folder.name},
        "agent_info": {
            "name": agent["name"],
            "version": agent["version"],
            "model_info": {"name": agent["model_name"]},
        },
        "agent_result": {
            "n_input_tokens": totals.get("total_prompt_tokens"),
            "n_cache_tokens": totals.get("total_cached_tokens"),
            "n_output_tokens": totals.get("total_completion_tokens"),
            "cost_usd": totals.get("total_cost_usd"),
        },
        **times,
        "agent_execution": times,
    }
    if result.score is not None:
        scores = {name: score for name, score in result.scores.items() if score is not None}
        found["verifier_result"] = {"rewards": scores | {"reward": result.score}}
    if result.error or result.kind:
        found["exception_info"] = {
            "exception_type": result.kind or str(result.status),
            "exception_message": result.error,
            "exception_traceback": "",
            "occurred_at": times["finished_at"],
        }
    return found
