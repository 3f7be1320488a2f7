"""What is recorded about an execution besides its answer: its start, its machine, what it was doing when."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent import Environment, RolloutConfig, RolloutWorker, run_parallel_rollout, tool
from paragent._internal.clock import ManualClock
from paragent.engines import WorkerChange
from paragent.engines.inline import InlineRuntime
from paragent.models import ModelSettings
from paragent.rollout.events import EventLog
from paragent.rollout.resources import RolloutSettings
from paragent.rollout.work_clock import WorkClock
from paragent.store import Journal, RolloutActivity, RolloutResult, RolloutStatus, unpack_activity
from paragent.store.records import pack_trajectory, unpack_trajectory
from paragent.tasks import BenchmarkTask
from paragent.testing import Fault, OpenAIServer, Script
from tests.waiting import wait_until_async

HERE = "tests.rollout.test_recording"
RA = RolloutActivity


class Slow(Environment):
    """Every part of a rollout takes some time."""

    name = "slow"
    metric = "contains"

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        time.sleep(0.02)
        return await super().open(task, machine)

    @tool
    async def generating(self, seconds: Annotated[float, "how long"]) -> str:
        """Sleep. The name of a tool may be a word for an activity."""
        time.sleep(seconds)
        return "slept"

    async def score(self, task: BenchmarkTask, answer: str, transcript: Any = ()) -> dict[str, float] | None:
        time.sleep(0.03)
        return None

    async def close(self) -> None:
        time.sleep(0.01)


class Plain(Environment):
    """Has no tools."""

    name = "plain"
    metric = "contains"


class Deadly(Environment):
    """Its tool kills the worker, as soon as the worker has reported that it executes the tool."""

    name = "deadly"
    metric = "contains"
    run = Path()

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        self.run = Path(task.question)
        return "?"

    @tool
    async def die(self) -> str:
        """Kill the worker."""
        status = self.run / "live" / f"{socket.gethostname()}-{os.getpid()}.json"
        await wait_until_async(lambda: status.exists() and '"die"' in status.read_text())
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


def execute(script: Script, *, max_retries: int = 0, stream: bool = False, **settings: Any) -> RolloutResult:
    with OpenAIServer(script) as server:
        model = ModelSettings(name="m", base_url=server.url, api_key="k", max_retries=max_retries, stream=stream)
        chosen: dict[str, Any] = {"run": "r", "environment": f"{HERE}:Slow", "model": model, "judge": model} | settings
        return RolloutWorker(RolloutSettings(**chosen)).run(BenchmarkTask("a", "what is it?", "42"))


def seconds_by_activity(result: RolloutResult) -> dict[RolloutActivity, float]:
    assert result.activity is not None
    found: dict[RolloutActivity, float] = defaultdict(float)
    for activity, seconds in unpack_activity(result.activity):
        found[activity] += seconds
    return found


def test_the_clock_records_what_a_rollout_was_doing() -> None:
    now = ManualClock()
    clock = WorkClock(now)

    def spend(seconds: float) -> None:
        now.advance(seconds)

    spend(1)
    clock.pause("waiting for a machine", None)
    spend(2)
    clock.resume()
    clock.enter(RA.OPENING)
    clock.doing("acting", "setting up")
    assert clock.activity == "setting up"
    spend(3)
    clock.enter(RA.WORKING)
    clock.doing("generating")
    spend(4)
    clock.pause("retrying after 500 from host", 5.0)
    spend(5)
    clock.resume()
    assert clock.activity == "generating"
    spend(6)
    clock.doing("acting", "calculator")
    assert clock.activity == "calculator"
    clock.doing("a word of the environment")
    spend(7)
    clock.doing("working")
    clock.enter(RA.SCORING)
    clock.doing("generating")
    spend(8)
    clock.enter(RA.CLOSING)
    spend(9)
    assert unpack_activity(clock.packed_activity()) == [
        (RA.STARTING, 1),
        (RA.WAITING_FOR_MACHINE, 2),
        (RA.OPENING, 3),
        (RA.GENERATING, 4),
        (RA.WAITING_FOR_ENDPOINT, 5),
        (RA.GENERATING, 6),
        (RA.ACTING, 7),
        (RA.SCORING, 8),
        (RA.CLOSING, 9),
    ]


steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "doing", "pause", "resume"]), st.sampled_from(RolloutActivity), st.floats(0.001, 9)
    ),
    max_size=1000,
)


@given(steps)
def test_the_recorded_intervals_cover_the_whole_time(steps: list[tuple[str, RolloutActivity, float]]) -> None:
    now = ManualClock()
    clock = WorkClock(now)
    waits = 0
    for kind, activity, seconds in steps:
        now.advance(seconds)
        if kind == "resume":
            if waits:
                waits -= 1
                clock.resume()
        elif kind == "pause":
            waits += 1
            clock.pause(activity, None)
        else:
            getattr(clock, kind)(activity)
    intervals = unpack_activity(clock.packed_activity())
    assert len(intervals) <= 200
    assert sum(one.seconds for one in intervals) == pytest.approx(now(), rel=1e-4)
    assert clock.worked + clock.waited == pytest.approx(now())


def test_a_rollout_records_its_start_and_its_activities() -> None:
    began = time.time()
    script = Script(
        default=[{"tool": "generating", "arguments": {"seconds": 0.1}}, "42"],
        latency=0.05,
        faults=[Fault(429, last=1, retry_after=0.2)],
    )
    done = execute(script)
    assert done.score == 1.0
    assert began <= done.started < done.ended <= time.time()
    found = seconds_by_activity(done)
    least = {RA.OPENING: 0.02, RA.GENERATING: 0.1, RA.ACTING: 0.1, RA.WAITING_FOR_ENDPOINT: 0.2, RA.SCORING: 0.03}
    assert all(found[activity] >= 0.99 * seconds for activity, seconds in least.items()), found
    assert sum(found.values()) == pytest.approx(done.ended - done.started, abs=0.05)
    assert sum(found.values()) == pytest.approx(done.seconds + done.waited, abs=0.05)
    assert found[RA.WAITING_FOR_ENDPOINT] == pytest.approx(done.waited, abs=0.01)
    assert done.machine == ""


def test_failed_rollouts_record_their_activities_too() -> None:
    late = execute(Script(latency=30.0), timeout=0.2)
    assert late.status is RolloutStatus.INFRASTRUCTURE, "the endpoint did not answer"
    assert seconds_by_activity(late)[RA.GENERATING] > 0.1
    down = execute(Script(faults=[Fault(500)], latency=0.05))
    assert down.status is RolloutStatus.INFRASTRUCTURE
    assert seconds_by_activity(down)[RA.OPENING] > 0.01
    assert down.started > 0


def steps_of(result: RolloutResult) -> list[dict[str, Any]]:
    assert result.trajectory is not None
    steps: list[dict[str, Any]] = unpack_trajectory(result.trajectory)["steps"]
    return steps


USAGE = {"prompt_tokens": 10, "completion_tokens": 8, "prompt_cache_hit_tokens": 6, "reasoning_tokens": 5}


@pytest.mark.parametrize("stream", [False, True])
def test_model_calls_are_recorded_with_everything_that_the_endpoint_returned(stream: bool) -> None:
    call = {"function": {"name": "generating", "arguments": '{"seconds": 0}'}}
    script = Script(
        default=[
            {"message": {"content": "", "reasoning": "I sleep.", "tool_calls": [call]}, "usage": USAGE},
            {"message": {"content": "42", "reasoning_content": "Done."}, "usage": USAGE},
        ],
        request_ids=True,
        faults=[Fault(500, last=1)],
    )
    done = execute(script, max_retries=1, stream=stream)
    assert (done.score, done.prompt_tokens, done.cached_tokens, done.reasoning_tokens) == (1.0, 20, 12, 10)
    assert done.trajectory is not None
    trajectory = unpack_trajectory(done.trajectory)
    said = [message for message in trajectory["messages"] if message["role"] == "assistant"]
    assert (said[0]["reasoning"], said[1]["reasoning_content"]) == ("I sleep.", "Done.")
    assert "tokens" not in trajectory
    first, _, second = trajectory["steps"]
    assert (first["turn"], first["messages"], first["retries"], first["waited"] > 0.2) == (1, 1, 1, True)
    assert (second["turn"], second["messages"], second["retries"], second["waited"]) == (2, 3, 0, 0.0)
    for step in (first, second):
        assert (step["kind"], step["model"]) == ("model", "m")
        assert step["usage"] == {
            "prompt_tokens": 10,
            "completion_tokens": 8,
            "cached_tokens": 6,
            "reasoning_tokens": 5,
        }
        assert step["request_id"] == f"req-{step['response']['id']}"
        assert step["seconds"] >= step["waited"]
        assert step["response"]["usage"] == USAGE
    assert second["response"]["choices"][0]["message"]["reasoning_content"] == "Done."
    assert second["finish_reason"] == "stop"


def sampled(prompt: list[int], ids: list[int], message: dict[str, Any]) -> dict[str, Any]:
    content = [{"token": "x", "logprob": -0.5} for _ in ids]
    choice = {"message": message, "finish_reason": "stop", "token_ids": ids, "logprobs": {"content": content}}
    return {"body": {"id": "c", "model": "m-7", "prompt_token_ids": prompt, "choices": [choice], "usage": USAGE}}


def test_sampled_tokens_are_recorded_once() -> None:
    call = {"function": {"name": "generating", "arguments": '{"seconds": 0}'}}
    script = Script(
        default=[
            sampled([1, 2], [3, 4], {"content": "", "tool_calls": [call]}),
            sampled([1, 2, 3, 4, 5], [6], {"content": "42"}),
        ]
    )
    done = execute(script)
    assert done.trajectory is not None
    trajectory = unpack_trajectory(done.trajectory)
    assert trajectory["tokens"] == [
        {
            "token_ids": [1, 2, 3, 4, 5, 6],
            "mask": [0, 0, 1, 1, 0, 1],
            "logprobs": [0.0, 0.0, -0.5, -0.5, 0.0, -0.5],
            "turns": [
                {"step": 0, "start": 2, "end": 4, "version": None},
                {"step": 2, "start": 5, "end": 6, "version": None},
            ],
        }
    ]
    for number in (0, 2):
        step = trajectory["steps"][number]
        assert (step["kind"], step["response_model"]) == ("model", "m-7")
        assert "token_ids" not in str(step["response"])
        assert "logprob" not in str(step["response"])


def test_failed_and_interrupted_model_calls_are_steps_with_an_error() -> None:
    [failed] = steps_of(execute(Script(faults=[Fault(500)])))
    assert (failed["kind"], failed["turn"], failed["model"], failed["messages"]) == ("model", 1, "m", 1)
    assert failed["error"].startswith("EndpointDown: ")
    [late] = steps_of(execute(Script(latency=30.0), timeout=0.2))
    assert (late["kind"], late["error"]) == ("model", "cancelled")
    assert late["seconds"] > 0.1


def test_the_calls_of_a_judge_are_steps() -> None:
    script = Script(default="It is 42.", answers={"criteria": "CORRECT", "Reference": "CORRECT", "42": "CORRECT"})
    judged = execute(script, metric="llm_judge", environment=f"{HERE}:Plain")
    first, judge, *_ = steps_of(judged)
    assert (first["kind"], judge["kind"], judge["model"]) == ("model", "judge", "m")
    assert "It is 42." in judge["request"][-1]["content"]
    assert judge["response"]["choices"]
    assert judge["usage"]["prompt_tokens"] > 0


def test_a_reply_that_cannot_be_stored_does_not_cost_the_rest_of_the_trajectory() -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    step = {"kind": "model", "turn": 1, "response": circle}
    packed = pack_trajectory({"messages": [{"role": "user", "content": "?"}], "tools": [], "steps": [step]})
    trajectory = unpack_trajectory(packed)
    assert trajectory["messages"][0]["content"] == "?"
    assert trajectory["steps"] == [{"kind": "model", "turn": 1}]


@pytest.mark.slow
def test_a_killed_worker_leaves_the_start_and_the_activities_of_its_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps({"id": "a", "question": str(tmp_path / "results/run"), "answer": "42"}))
    began = time.time()
    with OpenAIServer(Script(default={"tool": "die"}, latency=0.05)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        chosen: dict[str, Any] = {
            "env": f"{HERE}:Deadly",
            "model": "m",
            "engine": "local",
            "workers": 1,
            "num_rollouts": 1,
        }
        run_parallel_rollout(RolloutConfig(data=data, output_dir=tmp_path / "results", run_name="run", **chosen))
        requests = server.seen.requests
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        results = list(journal.results("1"))
        changes = list(journal.worker_events())
    assert len(results) == requests == len({one.worker for one in results}), "one result for each execution"
    assert sum(one.final for one in results) == 1
    for one in results:
        assert (one.kind, one.requests) == ("worker", 1)
        assert began < one.started < one.ended
        assert set(seconds_by_activity(one)) >= {RA.GENERATING, RA.ACTING}
        own = [change for change in changes if change.worker == one.worker]
        assert [change.event for change in own] == ["started", "ready", "lost"]
        assert "killed" in own[-1].detail


class Silent(InlineRuntime):
    """An engine that does not report its workers."""

    def worker_changes(self) -> list[WorkerChange]:
        return []


def test_workers_are_derived_from_results_if_the_engine_does_not_report_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.rollout.session.open_engine", Silent)
    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps({"id": "a", "question": "Compute 6*7.", "answer": "42"}))
    config = RolloutConfig(mode="math", model="demo", data=data, output_dir=tmp_path, run_name="run", engine="inline")
    run_parallel_rollout(config)
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        [result] = journal.results()
        [event] = journal.worker_events()
    assert (event.worker, event.event, event.at) == (result.worker, "started", result.started)


def test_a_lost_worker_is_derived_from_its_result() -> None:
    log = EventLog()
    lost = RolloutResult("a", 1, RolloutStatus.INFRASTRUCTURE, kind="worker", error="gone", worker="h:1")
    lost.started, lost.ended = 3.0, 7.0
    fine = RolloutResult("b", 1, RolloutStatus.COMPLETED, worker="h:2", started=4.0)
    log.derive([fine, lost, fine])
    assert [(one.worker, one.event, one.at, one.detail) for one in log.workers] == [
        ("h:2", "started", 4.0, ""),
        ("h:1", "started", 3.0, ""),
        ("h:1", "lost", 7.0, "gone"),
    ]


def test_events_are_recorded_without_results_after_a_while() -> None:
    now = ManualClock()
    log = EventLog(now)
    overdue = [log.overdue]
    for worker in ("h:1", "h:2"):
        log.derive([result_of(worker)])
        overdue.append(log.overdue)
        now.advance(6)
        overdue.append(log.overdue)
        log.clear()
        overdue.append(log.overdue)
    assert overdue == [False, False, True, False, False, True, False]


def result_of(worker: str) -> RolloutResult:
    return RolloutResult("a", 1, RolloutStatus.COMPLETED, worker=worker)
