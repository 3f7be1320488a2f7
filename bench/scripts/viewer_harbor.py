"""Write rollouts as a job of Harbor, with its own models. Usage: viewer_harbor.py ROLLOUTS.jsonl JOBS_FOLDER"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from harbor.models.agent.context import AgentContext
from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult, JobStats
from harbor.models.task.id import LocalTaskId
from harbor.models.trajectories import Agent, Observation, ObservationResult, Step, ToolCall, Trajectory
from harbor.models.trial.config import TaskConfig, TrialConfig
from harbor.models.trial.result import AgentInfo, ExceptionInfo, ModelInfo, TimingInfo, TrialResult
from harbor.models.verifier.result import VerifierResult

JOB = "sample"


def steps(messages: list[dict]) -> list[Step]:
    """Return a conversation as the steps of a trajectory: a tool's result belongs to the step that called it."""
    made: list[Step] = []
    for given in messages:
        if given["role"] == "tool":
            result = ObservationResult(source_call_id=given["tool_call_id"], content=given["content"])
            made[-1].observation = Observation(results=[result])
            continue
        source = {"assistant": "agent"}.get(given["role"], given["role"])
        calls = [
            ToolCall(
                tool_call_id=call["id"],
                function_name=call["function"]["name"],
                arguments=json.loads(call["function"]["arguments"]),
            )
            for call in given.get("tool_calls", [])
        ]
        fields = {"reasoning_content": given.get("reasoning_content"), "tool_calls": calls or None}
        more = fields if source == "agent" else {}
        made.append(Step(step_id=len(made) + 1, source=source, message=given["content"], **more))
    return made


def trial(rollout: dict, folder: Path) -> TrialResult:
    """Write one trial and return its result."""
    name = rollout["task"]
    started = datetime.fromtimestamp(rollout["started"], UTC)
    finished = datetime.fromtimestamp(rollout["started"] + rollout["seconds"], UTC)
    config = TrialConfig(task=TaskConfig(path=Path("tasks") / name), trial_name=name, trials_dir=folder)
    error = rollout["error"] and ExceptionInfo(
        exception_type=rollout["error"].partition(":")[0],
        exception_message=rollout["error"],
        exception_traceback="",
        occurred_at=finished,
    )
    times = TimingInfo(started_at=started, finished_at=finished)
    prompt, completion = rollout["tokens"]
    result = TrialResult(
        task_name=name,
        trial_name=name,
        trial_uri=(folder / name).as_uri(),
        task_id=LocalTaskId(path=Path("tasks") / name),
        source="sample",
        task_checksum="0",
        config=config,
        agent_info=AgentInfo(name="sample", version="1", model_info=ModelInfo(name="sample")),
        agent_result=AgentContext(n_input_tokens=prompt, n_output_tokens=completion),
        verifier_result=None if error else VerifierResult(rewards={"reward": rollout["score"]}),
        exception_info=error or None,
        started_at=started,
        finished_at=finished,
        agent_execution=times,
    )
    here = folder / name
    (here / "agent").mkdir(parents=True)
    (here / "config.json").write_text(config.model_dump_json())
    (here / "result.json").write_text(result.model_dump_json())
    agent = Agent(name="sample", version="1", model_name="sample")
    trajectory = Trajectory(session_id=name, agent=agent, steps=steps(rollout["messages"]))
    (here / "agent" / "trajectory.json").write_text(json.dumps(trajectory.to_json_dict()))
    return result


def main() -> None:
    """Write one job with all rollouts."""
    folder = Path(sys.argv[2]).resolve() / JOB
    folder.mkdir(parents=True)
    results = [trial(json.loads(line), folder) for line in Path(sys.argv[1]).read_text().splitlines()]
    (folder / "config.json").write_text(JobConfig(job_name=JOB, jobs_dir=folder.parent).model_dump_json())
    job = JobResult(
        id=uuid4(),
        started_at=results[0].started_at,
        finished_at=results[-1].finished_at,
        n_total_trials=len(results),
        stats=JobStats.from_trial_results(results, n_total_trials=len(results)),
    )
    (folder / "result.json").write_text(job.model_dump_json())


if __name__ == "__main__":
    main()
