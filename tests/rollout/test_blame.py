"""Blame: whose failure an error is, which results are retried, and which stop a run."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent import RolloutConfig, run_parallel_rollout
from paragent.envs import Environment
from paragent.errors import (
    BadData,
    ConfigError,
    EndpointDown,
    EndpointRefused,
    EnvironmentFailed,
    LeaseTimeout,
    MachineFailed,
    MissingExtra,
    PoolFailed,
    ProgramFailed,
    RequestRejected,
    TokensMissing,
    UsageError,
)
from paragent.models import ModelSettings, open_model
from paragent.rollout.blame import (
    RETRIES,
    Circumstances,
    Decision,
    FailureDecisions,
    RolloutFailureKind,
    Stage,
    blame,
    party_of,
)
from paragent.rollout.episode import RolloutEpisode
from paragent.runners.retry import RetryPolicy
from paragent.store import Journal, RolloutResult, RolloutStatus, Summary
from paragent.store.activity import ActivityInterval, RolloutActivity, pack_activity
from paragent.tasks import BenchmarkTask
from paragent.testing import Fault, OpenAIServer, Script
from paragent.training import Groups
from paragent.training.replay import ReplayPolicy

HERE = "tests.rollout.test_blame"
ACTING, SCORING, OPENING = (Circumstances(stage=stage) for stage in (Stage.ACTING, Stage.SCORING, Stage.OPENING))
BUILDING, CONSTRUCTING = (Circumstances(stage=stage) for stage in (Stage.BUILDING, Stage.CONSTRUCTING))
EXPIRED: dict[str, Any] = {"stage": Stage.ACTING, "limit": 10.0, "expired": True}
KEY = ConfigError("the key cannot be encoded")

# --- one error and its circumstances ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "known", "expected"),
    [
        (ValueError("x"), ACTING, ("failed", "ValueError", "agent")),
        (ProgramFailed("x"), ACTING, ("failed", "exit code", "agent")),
        (RequestRejected("x"), ACTING, ("failed", "RequestRejected", "agent")),
        (ConfigError("x"), ACTING, ("failed", "ConfigError", "agent")),
        (KEY, Circumstances(stage=Stage.ACTING, call_failure=KEY), ("infrastructure", "settings", "settings")),
        (EndpointDown("x"), ACTING, ("infrastructure", "endpoint", "endpoint")),
        (EndpointDown("x", others_answered=True), ACTING, ("infrastructure", "request", "endpoint")),
        (EndpointRefused("x", 403), ACTING, ("infrastructure", "settings", "settings")),
        (EndpointRefused("x", 403, answered=True), ACTING, ("failed", "refused", "agent")),
        (EndpointRefused("x", 401, answered=True), ACTING, ("infrastructure", "settings", "settings")),
        (EndpointRefused("x", 402, answered=True), ACTING, ("infrastructure", "settings", "settings")),
        (EndpointRefused("x", answered=True), ACTING, ("infrastructure", "settings", "settings")),
        (TokensMissing("x"), ACTING, ("infrastructure", "tokens", "settings")),
        (MachineFailed("x"), SCORING, ("infrastructure", "machine", "machine")),
        (LeaseTimeout("x"), BUILDING, ("infrastructure", "machine", "machine")),
        (PoolFailed("x"), BUILDING, ("infrastructure", "pool", "machine")),
        (EnvironmentFailed("x"), ACTING, ("infrastructure", "environment", "environment")),
        (KeyError("x"), OPENING, ("infrastructure", "environment", "environment")),
        (BadData("tasks", [(1, "x")]), OPENING, ("infrastructure", "task", "task")),
        (MissingExtra("a", "b", "c"), OPENING, ("infrastructure", "settings", "settings")),
        (UsageError("x"), BUILDING, ("infrastructure", "settings", "settings")),
        (UsageError("x"), CONSTRUCTING, ("infrastructure", "settings", "settings")),
        (KeyError("x"), CONSTRUCTING, ("failed", "KeyError", "agent")),
        (ConfigError("x"), SCORING, ("unscored", "scoring", "scorer")),
        (EndpointDown("x"), SCORING, ("unscored", "scoring", "scorer")),
        (EnvironmentFailed("x"), SCORING, ("unscored", "scoring", "scorer")),
        (EndpointRefused("x", 403, answered=True), SCORING, ("unscored", "scoring", "scorer")),
        (EndpointRefused("x", 401, answered=True), SCORING, ("infrastructure", "settings", "settings")),
        (TimeoutError(), Circumstances(**EXPIRED), ("timed out", "time limit", "agent")),
        (TimeoutError(), ACTING, ("failed", "TimeoutError", "agent")),
        (TimeoutError(), Circumstances(**EXPIRED, unanswered=4.0), ("timed out", "time limit", "agent")),
        (TimeoutError(), Circumstances(**EXPIRED, unanswered=6.0), ("infrastructure", "endpoint", "endpoint")),
        (
            TimeoutError(),
            Circumstances(**EXPIRED, unanswered=1.0, endpoint_answered=False),
            ("infrastructure", "endpoint", "endpoint"),
        ),
        (
            TimeoutError(),
            Circumstances(**EXPIRED, call_failure=EndpointDown("x")),
            ("infrastructure", "endpoint", "endpoint"),
        ),
        (
            TimeoutError(),
            Circumstances(stage=Stage.OPENING, limit=10.0, expired=True),
            ("infrastructure", "environment", "environment"),
        ),
        (
            TimeoutError(),
            Circumstances(stage=Stage.SCORING, limit=10.0, expired=True),
            ("unscored", "scoring", "scorer"),
        ),
    ],
)
def test_a_failure_is_blamed_on_the_party_that_caused_it(
    error: Exception, known: Circumstances, expected: tuple[str, str, str]
) -> None:
    verdict = blame(error, known)
    assert (verdict.status, verdict.kind, party_of(verdict.kind, verdict.status)) == expected


def test_every_kind_has_a_party() -> None:
    assert all(party_of(kind, "failed") for kind in RolloutFailureKind)
    assert (party_of("ValueError", "failed"), party_of("", "completed")) == ("agent", "")


def test_a_request_that_failed_is_the_endpoints_until_it_is_final() -> None:
    assert (party_of("request", "infrastructure"), party_of("request", "failed")) == ("endpoint", "agent")


# --- results and those before them -------------------------------------------------------------------------------------------


def infrastructure(task: str, kind: str) -> RolloutResult:
    return RolloutResult(task, 1, RolloutStatus.INFRASTRUCTURE, kind=kind, error=f"no {kind}")


def decide(policy: FailureDecisions, result: RolloutResult, **known: Any) -> Decision:
    return policy.decide(result, **({"concurrent": 2, "stopping": False, "endpoint_answered": True} | known))


def test_infrastructure_failures_are_retried_a_few_times() -> None:
    policy = FailureDecisions(10)
    delays = [decide(policy, infrastructure("t", "environment")).retry_after for _ in range(4)]
    assert delays == [RETRIES.delay(1), RETRIES.delay(2), None, RETRIES.delay(1)], (
        "the count begins again after a final result"
    )
    assert decide(policy, infrastructure("u", "environment"), stopping=True) == Decision()
    assert decide(policy, infrastructure("v", "worker")) == Decision(), "the runner has retried it"
    assert decide(policy, infrastructure("v", "task")) == Decision(), "the data would be the same"
    assert decide(policy, infrastructure("w", "settings")) == Decision(stop="no settings")


def test_an_endpoint_that_fails_again_and_again_stops_the_run() -> None:
    policy = FailureDecisions(0)
    stops = [decide(policy, infrastructure(f"t{n}", "endpoint"), stopping=True).stop for n in range(20)]
    assert stops[:19] == [""] * 19
    assert "the last 20 rollouts all ended with: no endpoint" in stops[19]


def test_an_endpoint_that_has_never_answered_stops_the_run_soon() -> None:
    policy = FailureDecisions(10)
    decisions = [decide(policy, infrastructure(f"t{n}", "endpoint"), endpoint_answered=False) for n in range(3)]
    assert [bool(one.retry_after) for one in decisions] == [True, True, False]
    assert [one.stop for one in decisions] == ["", "", "the endpoint has never answered: no endpoint"]


def test_refusals_in_a_row_stop_the_run_and_leave_their_rollouts_pending() -> None:
    def refused(task: str) -> RolloutResult:
        return RolloutResult(task, 1, RolloutStatus.FAILED, kind="refused", error="refused")

    policy = FailureDecisions(0)
    assert [decide(policy, refused(f"a{n}")) for n in range(19)] == [Decision()] * 19
    assert decide(policy, RolloutResult("ok", 1, RolloutStatus.COMPLETED)) == Decision()
    decisions = [decide(policy, refused(f"b{n}")) for n in range(20)]
    assert decisions[:19] == [Decision()] * 19, "the count began again"
    assert "refused the last 20 rollouts" in decisions[19].stop
    assert decisions[19].reopen == tuple((f"b{n}", 1) for n in range(20))


def test_a_request_that_fails_again_and_again_while_others_are_answered_is_the_agents() -> None:
    policy = FailureDecisions(0)
    results = [infrastructure("t", kind) for kind in ("request", "request", "endpoint")]
    assert [decide(policy, one).retry_after for one in results] == [RETRIES.delay(1), RETRIES.delay(2), None]
    assert [one.status for one in results] == ["infrastructure", "infrastructure", "failed"]
    results = [infrastructure("t", kind) for kind in ("request", "endpoint", "endpoint")]
    assert [decide(policy, one).retry_after for one in results] == [RETRIES.delay(1), RETRIES.delay(2), None]
    assert {one.status for one in results} == {"infrastructure"}, "the endpoint may have died during the first"


def executed(task: str, kind: str, started: float, ended: float, turns: int = 0) -> RolloutResult:
    result = infrastructure(task, kind)
    result.started, result.ended, result.turns, result.requests = started, ended, turns, turns
    return result


def answered(task: str, at: float, ended: float) -> RolloutResult:
    """Return a result whose last request was answered at a time, and which was scored for long."""
    intervals = [
        (RolloutActivity.GENERATING, at),
        (RolloutActivity.SCORING, ended - at),
        (RolloutActivity.GENERATING, 1),
    ]
    return RolloutResult(
        task, 1, RolloutStatus.COMPLETED, turns=1, requests=1, started=0.0, ended=ended,
        activity=pack_activity([ActivityInterval(*one) for one in intervals]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ((15, 25), "failed"),
        ((15,), "infrastructure"),  # the endpoint may have died after it
        ((5,), "infrastructure"),
        ((), "infrastructure"),
    ],
)
def test_a_request_fails_by_itself_if_the_endpoint_answers_between_its_executions(
    answers: tuple[int, ...], status: str
) -> None:
    policy = FailureDecisions(0)
    failures = [executed("t", "endpoint", 10.0 * n, 10.0 * n + 9) for n in range(3)]
    events = [*failures, *(answered(f"u{at}", at, at + 3) for at in answers)]
    for result in sorted(events, key=lambda one: one.ended):
        decide(policy, result)
    assert (failures[-1].status, failures[-1].kind) == (status, "request" if status == "failed" else "endpoint")


def test_an_answer_that_was_only_scored_later_does_not_show_that_the_endpoint_works() -> None:
    policy = FailureDecisions(0)
    failures = [executed("t", "endpoint", 10.0 * n, 10.0 * n + 9) for n in range(3)]
    for failure in failures:
        decide(policy, failure)
        decide(policy, answered(f"u{failure.ended}", 5, failure.ended + 1))
    assert failures[-1].status == "infrastructure"


def test_replies_within_a_rollout_show_that_the_endpoint_works() -> None:
    policy = FailureDecisions(0)
    results = [executed("t", "endpoint", 10.0 * n, 10.0 * n + 9, turns=2) for n in range(3)]
    for result in results:
        decide(policy, result)
    assert (results[-1].status, results[-1].kind) == ("failed", "request")


def test_failed_executions_of_earlier_sessions_count() -> None:
    def earlier(*answers: float) -> FailureDecisions:
        failures = [executed("t", "endpoint", 10.0 * n, 10.0 * n + 9) for n in range(3)]
        others = [answered(f"u{at}", at, at + 0.5) for at in answers]
        policy = FailureDecisions(0)
        policy.load(sorted([*failures, *others], key=lambda one: one.ended), [0.0, 50.0])
        return policy

    def last_of(policy: FailureDecisions) -> RolloutResult:
        results = [executed("t", "endpoint", 100.0 + 10 * n, 109.0 + 10 * n) for n in range(3)]
        assert [bool(decide(policy, one).retry_after) for one in results] == [True, True, False]
        return results[-1]

    assert last_of(earlier(25, 40)).status == "failed", "after the second and after the third execution"
    assert last_of(earlier(25)).status == "infrastructure"
    late = earlier(25)
    decide(late, answered("v", 99, 99.5))
    assert last_of(late).status == "infrastructure", "an answer in a new session shows nothing of the session before"


def test_a_request_that_always_fails_ends_its_replays_in_training() -> None:
    policy = ReplayPolicy(Groups(), 0)
    results = [infrastructure("t", kind) for kind in ("request", "request", "endpoint")]
    decisions = [policy.decide(one, concurrent=2, stopping=False, endpoint_answered=True) for one in results]
    assert [bool(one.retry_after) for one in decisions] == [True, True, False]
    assert (results[-1].status, results[-1].kind, policy.given_up) == ("failed", "request", set())
    for _ in range(7):
        assert policy.decide(
            infrastructure("u", "endpoint"), concurrent=2, stopping=False, endpoint_answered=True
        ).retry_after
    last = policy.decide(infrastructure("u", "endpoint"), concurrent=2, stopping=False, endpoint_answered=True)
    assert (last.retry_after, policy.given_up) == (None, {("u", 1)})


def test_failures_of_scorers_and_cancelled_rollouts_decide_nothing() -> None:
    policy = FailureDecisions(2)
    failed = RolloutResult("t", 1, RolloutStatus.FAILED, kind="ValueError", error="ValueError: x")
    cancelled = RolloutResult("u", 1, RolloutStatus.CANCELLED, kind="cancelled", error="cancelled by a user")
    unscored = RolloutResult("v", 1, RolloutStatus.UNSCORED, kind="scoring", error="no score")
    assert [decide(policy, one) for one in (failed, cancelled, *[unscored] * 30)] == [Decision()] * 32
    assert "first 2 rollouts" in decide(policy, failed).stop


def test_a_run_is_not_given_up_while_a_rollout_that_started_earlier_has_not_ended() -> None:
    def failed(task: str) -> RolloutResult:
        return RolloutResult(task, 1, RolloutStatus.FAILED, kind="ValueError", error="ValueError: x")

    answer = RolloutResult("first", 1, RolloutStatus.COMPLETED)
    for last, stops in ((failed("first"), True), (answer, False)):
        policy = FailureDecisions(2)
        assert not decide(policy, failed("b"), earlier=[("first", 1)]).stop
        assert not decide(policy, failed("c"), earlier=[("first", 1)]).stop
        assert not decide(policy, failed("d"), earlier=[("first", 1)]).stop
        assert ("first 4 rollouts" in decide(policy, last).stop) is stops
        assert bool(decide(policy, failed("e")).stop) is stops
    slow = FailureDecisions(2)
    stops_at = [bool(decide(slow, failed(task), earlier=[("first", 1)]).stop) for task in "bcde"]
    assert stops_at == [False, False, False, True], "a rollout that takes hours does not let all others fail"


# --- whole runs --------------------------------------------------------------------------------------------------------------


class Plain(Environment):
    """A question without tools."""

    name = "plain"
    metric = "contains"


class Unsure(Plain):
    """Cannot score the answer of one task at all, and that of another at first."""

    name = "unsure"
    tries = 0

    async def score(self, task: BenchmarkTask, answer: str, transcript: Any = ()) -> dict[str, float] | None:
        if "never" in task.question:
            raise ConfigError("the rule 'regex' is unknown")
        Unsure.tries += "later" in task.question
        if "later" in task.question and Unsure.tries < 3:
            raise KeyError("not ready")
        return {"contains": 1.0}


class Unhurried(Plain):
    """Takes some time to score an answer."""

    name = "unhurried"

    async def score(self, task: BenchmarkTask, answer: str, transcript: Any = ()) -> dict[str, float] | None:
        await asyncio.sleep(1.0)
        return {"contains": 1.0}


class Provoking:
    """Sends one request that the endpoint fails, and gives up."""

    async def run_episode(self, episode: RolloutEpisode) -> str:
        episode.messages.append({"role": "user", "content": episode.question})
        await episode.complete()
        return "42"


Run = Callable[..., tuple[Summary, dict[str, RolloutResult]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs rollouts at an endpoint and returns the summary and the final results by task."""
    monkeypatch.setattr("paragent.rollout.blame.RETRIES", RetryPolicy(pause=0.001))
    monkeypatch.setattr("paragent.rollout.worker.SCORE_PAUSE", 0.001)

    def execute(url: str, questions: dict[str, str], **settings: Any) -> tuple[Summary, dict[str, RolloutResult]]:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        data = tmp_path / "tasks.jsonl"
        lines = [json.dumps({"id": name, "question": text, "answer": "42"}) for name, text in questions.items()]
        data.write_text("\n".join(lines))
        chosen: dict[str, Any] = {
            "env": f"{HERE}:Plain", "data": data, "model": "m", "engine": "inline", "num_rollouts": 4,
            "max_retries": 0, "output_dir": tmp_path / "results", "run_name": "run",
        }  # fmt: skip
        summary = run_parallel_rollout(RolloutConfig(**chosen | settings))
        with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
            return summary, {one.task: one for one in journal.results("final = 1")}

    return execute


def numbered(number: int, **others: str) -> dict[str, str]:
    return {f"t{n}": "what is it?" for n in range(number)} | others


def test_a_prompt_that_the_endpoint_refuses_fails_its_rollout_only(run: Run) -> None:
    tasks = {"ok": "what is it?", "bad": "a forbidden word", **numbered(8)}
    with OpenAIServer(Script(faults=[Fault(403, contains="forbidden", message="flagged")])) as server:
        summary, results = run(server.url, tasks, num_rollouts=1)
        assert (summary.pending, summary.statuses["completed"]) == (0, 9)
        assert (results["bad"].status, results["bad"].kind) == ("failed", "refused")
        assert "flagged" in results["bad"].error
        seen = server.seen.requests
        again, results = run(server.url, tasks, num_rollouts=1, retry_failed=True)
        assert server.seen.requests == seen + 1
    assert again.pending == 0, "the endpoint has answered in an earlier session, so the run goes on to its end"
    assert results["bad"].kind == "refused"


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_a_refusal_before_the_first_answer_stops_the_run(run: Run, status: int) -> None:
    with OpenAIServer(Script(faults=[Fault(status)])) as server:
        summary, results = run(server.url, numbered(12))
        assert server.seen.requests == 1, "one request at a time until the endpoint has answered"
    assert summary.pending == 12
    assert {one.kind for one in results.values()} == {"settings"}


def test_a_key_that_is_rejected_later_stops_the_run(run: Run) -> None:
    with OpenAIServer(Script(faults=[Fault(401, first=4)])) as server:
        summary, _ = run(server.url, numbered(12), num_rollouts=1)
    assert (summary.pending, summary.statuses["completed"]) == (9, 3)


def test_an_endpoint_that_refuses_everything_later_stops_the_run_and_costs_no_result(run: Run) -> None:
    with OpenAIServer(Script(faults=[Fault(403, first=4)])) as server:
        summary, _ = run(server.url, numbered(40), num_rollouts=1)
        assert server.seen.requests == 23
    assert (summary.pending, summary.statuses["completed"], summary.statuses["failed"]) == (37, 3, 0)


def test_a_dead_endpoint_is_noticed_with_the_first_rollout(run: Run) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening, so that connections are refused
        summary, results = run(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", numbered(30), num_rollouts=8)
    assert summary.pending == 30
    assert len(results) <= 8, "the others did not start"
    assert {one.kind for one in results.values()} == {"endpoint"}


@pytest.mark.slow
def test_until_the_first_answer_one_request_is_in_flight(run: Run) -> None:
    class Observed(Script):
        def reply(self, request: Any) -> Any:
            seen.append(server.seen.most_in_flight)
            return super().reply(request)

    seen: list[int] = []
    with OpenAIServer(Observed(latency=0.2, faults=[Fault(500, last=2)])) as server:
        summary, _ = run(server.url, numbered(8), max_retries=3, num_rollouts=8, workers=2, engine="local")
        assert seen[0] == 1
        assert server.seen.most_in_flight > 1
    assert summary.mean == 1.0


def test_an_endpoint_that_hangs_is_not_the_agents_failure(run: Run) -> None:
    with OpenAIServer(Script(faults=[Fault(hangs=True, contains="slow")])) as server:
        summary, results = run(server.url, numbered(3, last="slow"), num_rollouts=1, timeout=0.5)
    assert (summary.statuses["completed"], summary.pending) == (3, 1)
    assert (results["last"].status, results["last"].kind) == ("infrastructure", "endpoint")


def test_the_agents_own_time_counts_also_while_a_request_is_under_way(run: Run) -> None:
    with OpenAIServer(Script(latency=0.2)) as server:
        summary, results = run(server.url, numbered(2), num_rollouts=1, timeout=0.5, agent=f"{HERE}:Endless")
    assert summary.pending == 0
    assert {(one.status, one.kind) for one in results.values()} == {("timed out", "time limit")}


class Endless:
    """Asks again and again."""

    async def run_episode(self, episode: RolloutEpisode) -> str:
        episode.messages.append({"role": "user", "content": episode.question})
        while True:
            await episode.complete()


def test_an_agent_cannot_choose_to_be_an_infrastructure_failure(run: Run) -> None:
    faults = [Fault(500, contains="odd")]
    settings = {"agent": f"{HERE}:Provoking", "num_rollouts": 8}
    with OpenAIServer(Script(latency=0.2, faults=faults)) as server:
        # Others are answered while the odd one fails and is tried again.
        summary, results = run(server.url, numbered(40, odd="odd") | numbered(80), max_retries=1, **settings)
    assert (summary.pending, summary.statuses["completed"]) == (0, 80)
    assert (results["odd"].status, results["odd"].kind) == ("failed", "request")


def test_a_request_is_blamed_by_what_others_were_answered_between_its_executions(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.rollout.blame.RETRIES", RetryPolicy(pause=0.2))
    with OpenAIServer(Script(latency=0.02, faults=[Fault(500, contains="odd")])) as server:
        summary, results = run(server.url, numbered(1, odd="odd") | numbered(60), num_rollouts=2)
    assert (summary.pending, summary.statuses["completed"]) == (0, 60)
    assert (results["odd"].status, results["odd"].kind) == ("failed", "request")


def test_a_run_whose_first_answer_is_scored_slowly_is_not_given_up(run: Run) -> None:
    tasks = {"good": "slow to score"} | {f"t{n}": "odd" for n in range(20)}
    with OpenAIServer(Script(faults=[Fault(400, contains="odd")])) as server:
        summary, results = run(server.url, tasks, env=f"{HERE}:Unhurried", num_rollouts=3)
    assert results["good"].status == "completed"
    assert (summary.pending, summary.statuses["failed"]) == (0, 20)


def test_why_a_run_stopped_is_stored_until_the_next_session(run: Run, tmp_path: Path) -> None:
    def stopped() -> str | None:
        with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
            return journal.meta("stopped")

    tasks = {f"t{n}": "odd" for n in range(20)}
    with OpenAIServer(Script(faults=[Fault(400, contains="odd")])) as server:
        summary, _ = run(server.url, tasks, num_rollouts=2)
        assert summary.pending
        assert "the first 10 rollouts all failed with the same error" in str(stopped())
        run(server.url, tasks, num_rollouts=2, give_up_after=0)
    assert stopped() == ""


def test_a_failure_of_the_scorer_is_neither_the_agents_nor_a_reason_to_stop(run: Run) -> None:
    Unsure.tries = 0
    tasks = numbered(2) | {f"n{n}": "never" for n in range(12)} | {"later": "later"}
    with OpenAIServer(Script()) as server:
        summary, results = run(server.url, tasks, env=f"{HERE}:Unsure")
        assert server.seen.requests == len(tasks), "the agent does not work again"
    assert summary.pending == 0
    assert (results["later"].status, results["later"].score) == ("completed", 1.0)
    unscored = results["n0"]
    assert (unscored.status, unscored.kind, unscored.score, unscored.answer) == ("unscored", "scoring", None, "42")
    assert "the rule 'regex' is unknown" in unscored.error


VERDICT = json.dumps({"reasoning": "the same", "correct": True})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.integration])])
def test_a_judge_that_has_to_wait_gives_the_true_score(run: Run, engine: str) -> None:
    """Requests wait for the rate limit and after 429 responses while answers are scored, after the agents' time limit ended."""
    script = Script(
        answers={
            '"answer": "wrong"': VERDICT.replace("true", "false"),
            '"references"': VERDICT,
            "t1:": "wrong",
        },
        latency=0.02,
        most_at_once=3,
        faults=[Fault(429, first=3, every=3, retry_after=0.05)],
    )
    tasks = {f"t{n}": f"t{n % 3}: what is it?" for n in range(30)}
    with OpenAIServer(script) as server:
        settings: dict[str, Any] = {"metric": "llm_judge", "num_rollouts": 8, "timeout": 30, "max_retries": 3}
        summary, results = run(server.url, tasks, engine=engine, **settings)
    assert (summary.pending, summary.statuses["completed"]) == (0, 30)
    assert summary.mean == pytest.approx(20 / 30)
    assert all(one.score == (0.0 if int(one.task[1:]) % 3 == 1 else 1.0) for one in results.values())


# --- limits of requests ------------------------------------------------------------------------------------------------------


@pytest.fixture
def dripping() -> Iterator[str]:
    """Serve replies of which a byte arrives every 20 ms, for ever: the start of a JSON body, or pings of a stream."""
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            streamed = b'"stream":true' in connection.recv(65_536)
            kind = "text/event-stream" if streamed else "application/json"
            first = 'data: {"choices": [{"index": 0, "delta": {"content": "4"}}]}\n\n' if streamed else "{"
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(f"{head}{len(first):x}\r\n{first}\r\n".encode())
            ping = b'data: {"type": "ping"}\n\n' if streamed else b" "
            piece = b"%x\r\n%s\r\n" % (len(ping), ping)
            while not stop.wait(0.02):
                try:
                    connection.sendall(piece)
                except OSError:
                    return

    def serve() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=drip, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
    server.join(10)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"request_timeout": 0.3}, "no answer within 0.3 s"),
        ({"request_timeout": 0.3, "stream": True}, "no answer within 0.3 s"),
        ({"request_timeout": 20, "stall_timeout": 0.2, "stream": True}, "no progress for 0.2 s"),
    ],
)
def test_a_reply_that_drips_is_late(dripping: str, limits: dict[str, Any], message: str) -> None:
    async def ask() -> None:
        model = open_model(ModelSettings(name="m", base_url=dripping, api_key="k", max_retries=0, **limits))
        try:
            async with asyncio.timeout(15):
                await model.complete([{"role": "user", "content": "?"}], [])
        finally:
            await model.close()

    with pytest.raises(EndpointDown, match=message):
        asyncio.run(ask())


def test_the_limit_of_a_request_is_below_that_of_the_rollout() -> None:
    with pytest.raises(ConfigError, match="--request-timeout must be below --timeout, which is 60 s, not 60 s"):
        RolloutConfig(request_timeout=60, timeout=60)
    assert RolloutConfig(request_timeout=59, timeout=60).model.request_timeout == 59


def test_a_slot_of_the_queue_is_given_back_whatever_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that fails with another error than a cancellation must not occupy a slot for ever."""
    from paragent.execution import current_activity

    class Broken:
        def doing(self, what: str, name: str = "") -> None:
            pass

        def pause(self, what: str, seconds: float | None) -> None:
            raise RuntimeError("the clock has stopped")

        def resume(self) -> None:
            raise AssertionError

    async def ask(model: Any, activity: Any) -> str:
        current_activity.set(activity)
        return str((await model.complete([{"role": "user", "content": "?"}], [])).message["content"])

    async def scenario(url: str) -> list[Any]:
        model = open_model(ModelSettings(name="m", base_url=url, api_key="k", max_concurrency=1))
        try:
            async with asyncio.timeout(20):
                first = await asyncio.gather(
                    *(ask(model, one) for one in (None, Broken(), Broken())), return_exceptions=True
                )
                return [*first, await ask(model, None), model.pressure()[0]]
        finally:
            await model.close()

    with OpenAIServer(Script(latency=0.05)) as server:
        first, *broken, last, in_flight = asyncio.run(scenario(server.url))
    assert (first, last, in_flight) == ("42", "42", 0)
    assert [type(one) for one in broken] == [RuntimeError, RuntimeError]
