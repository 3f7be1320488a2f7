"""The rollout service in the process of the trainer: groups, samples, acceptance, failures."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent.errors import (
    BadData,
    ConfigError,
    GroupNotOwed,
    ReplaysUsedUp,
    RewardMissing,
    RunBusy,
    ServiceStopped,
    TokensMissing,
    UsageError,
)
from paragent.rollout import blame
from paragent.runners.retry import RetryPolicy
from paragent.testing import Fault, OpenAIServer, Script
from paragent.testing.toy_tokens import decode, logprob_of
from paragent.training import Endpoint, Group, Groups, RolloutService, epochs, partial, replay
from tests.training.policy import LOOK, NO_TOKENS, config, task
from tests.waiting import wait_until


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(Script(default=[LOOK, "42"])) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RETRIES", RetryPolicy(pause=0.01))
    assert blame.RETRIES.pause > 0, "other sessions are not changed"


def open_service(folder: Path, server: OpenAIServer, n: int = 2, **settings: Any) -> RolloutService:
    own = {name: settings.pop(name) for name in ("max_staleness", "groups_per_version", "version") if name in settings}
    groups = settings.pop("groups", Groups(n=n))
    return RolloutService(config(folder, engine="inline", **settings), server.url, groups, **own)


def test_samples_have_the_sampled_tokens(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        service.add([task("a"), {"id": "b", "question": "and?", "answer": "41"}])
        groups = {group.id: group for group in service.groups(timeout=60)}
    assert set(groups) == {"a", "b"}
    assert groups["a"].rewards == [1.0, 1.0]
    assert groups["b"].rewards == [0.0, 0.0]
    [first, second] = groups["a"].samples
    assert (first.attempt, second.attempt, first.branch, first.status) == (1, 2, 0, "completed")
    [look, answer] = first.turns
    assert decode(first.token_ids[look.start : look.end]) == '<tool_call>["look", {}]</tool_call><|end|>'
    assert decode(first.token_ids[answer.start : answer.end]) == "42<|end|>"
    assert decode(first.token_ids[look.end : answer.start]).endswith("a room<|end|><|begin|>assistant\n")
    expected = [0.0] * len(first.token_ids)
    for turn in first.turns:
        ids = first.token_ids[turn.start : turn.end]
        expected[turn.start : turn.end] = [logprob_of(ids, place) for place in range(len(ids))]
    assert first.logprobs == expected
    assert [place for place, sampled in enumerate(first.mask) if sampled] == [
        *range(look.start, look.end),
        *range(answer.start, answer.end),
    ]
    assert first.arrays()["token_ids"].tolist() == first.token_ids
    assert first.versions == [0]


def test_a_rewritten_history_is_another_sample_of_the_same_attempt(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        service.add([task("a", "rewrite")])
        [group] = service.groups(timeout=60)
    assert [(one.attempt, one.branch, one.weight, one.reward) for one in group.samples] == [
        (1, 0, 0.5, 1.0),
        (1, 1, 0.5, 1.0),
        (2, 0, 0.5, 1.0),
        (2, 1, 0.5, 1.0),
    ]
    assert group.rewards == [1.0, 1.0], "one for each attempt"
    assert len(group.advantages()) == 4


def test_advantages_compare_attempts_and_not_samples() -> None:
    def accept(_: Group) -> None: ...

    samples: list[Any] = [type("S", (), {"reward": reward})() for reward in (1.0, 1.0, 1.0, 0.0)]
    group = Group("a", {}, samples, [1, 2], [1.0, 0.0], [], 0, "", accept)
    assert group.advantages() == [1.0, 1.0, 1.0, -1.0]
    assert group.advantages(scaled=False) == [0.5, 0.5, 0.5, -0.5]


def test_a_group_is_accepted_once(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        service.add([task("a")])
        [group] = service.groups(timeout=60)
        group.accept()
        with pytest.raises(GroupNotOwed, match="accepted before"):
            group.accept()
        service.accept(group.id, group.delivery)  # a repeated request changes nothing
        with pytest.raises(GroupNotOwed):
            service.accept("a", "another delivery")
        with pytest.raises(GroupNotOwed):
            service.accept("unknown", group.delivery)
        assert service.status().accepted == 1


def test_groups_are_delivered_to_later_services_until_they_are_accepted(tmp_path: Path, server: OpenAIServer) -> None:
    tasks = [task(name) for name in "abc"]
    with open_service(tmp_path, server) as service:
        service.add(tasks)
        first = {group.id: group for group in service.groups(timeout=60)}
        first["b"].accept()
    requests = server.seen.requests
    with open_service(tmp_path, server) as service:
        service.add(tasks)
        again = {group.id: group for group in service.groups(timeout=60)}
        assert set(again) == {"a", "c"}
        assert [one.token_ids for one in again["a"].samples] == [one.token_ids for one in first["a"].samples]
        for group in again.values():
            group.accept()
    assert server.seen.requests == requests, "nothing was sampled again"
    with open_service(tmp_path, server) as service:
        service.add(tasks)
        assert list(service.groups(timeout=60)) == []


def test_a_service_delivers_a_group_again_on_request(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        service.add([task("a")])
        [group] = service.groups(timeout=60)
        assert service.redeliver() == 1
        [again] = service.groups(timeout=60)
        with pytest.raises(GroupNotOwed, match="delivered again"):
            group.accept()
        again.accept()


def test_infrastructure_failures_are_replayed(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        service.add([task("a", fails=3, folder=str(tmp_path))])
        [group] = service.groups(timeout=60)
        assert service.status().replays == 3
    assert group.rewards == [1.0, 1.0]
    assert group.failures == []


def test_unexpected_errors_of_the_environment_are_replayed(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        service.add([task("a", fails=0, breaks=3, folder=str(tmp_path))])
        [group] = service.groups(timeout=60)
        assert service.status().replays == 3
    assert group.rewards == [1.0, 1.0]


def test_a_request_that_hangs_is_never_reward_0(tmp_path: Path) -> None:
    with (
        OpenAIServer(Script(default="42", faults=[Fault(hangs=True, first=2, last=3)])) as server,
        open_service(tmp_path, server, timeout=1.0) as service,
    ):
        service.add([task("a")])
        [group] = service.groups(timeout=60)
        assert service.status().replays >= 1
    assert (group.rewards, group.failures) == ([1.0, 1.0], [])


def test_a_scorer_that_fails_is_asked_again_and_the_agent_is_not(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server, n=1) as service:
        service.add([task("a", unscored=str(tmp_path / "unscored"))])
        [group] = service.groups(timeout=60)
        assert service.status().replays == 0
    assert group.rewards == [1.0]


@pytest.mark.parametrize("question", ["absorb", "absorb and wait"])
def test_a_failure_of_the_endpoint_is_replayed_although_the_agent_hides_it(tmp_path: Path, question: str) -> None:
    """The agent answers without the model, or sleeps until its time limit; neither earns a reward."""
    script = Script(default="42", faults=[Fault(500, last=1)])
    with (
        OpenAIServer(script) as server,
        open_service(tmp_path, server, n=1, max_retries=0, timeout=1.5) as service,
    ):
        service.add([task("a", question)])
        [group] = service.groups(timeout=60)
        assert service.status().replays == 1
    assert group.rewards == [1.0]
    assert [sample.status for sample in group.samples] == ["completed"]


def test_too_many_replays_are_an_error_and_the_group_stays_owed(tmp_path: Path, server: OpenAIServer) -> None:
    groups = Groups(n=1, max_failures=3)
    with open_service(tmp_path, server, groups=groups) as service:
        service.add([task("a", fails=4, folder=str(tmp_path))])
        with pytest.raises(ReplaysUsedUp, match=r"3 times in a row.*as the task says") as raised:
            list(service.groups(timeout=60))
        assert (raised.value.task, raised.value.attempt, raised.value.failures) == ("a", 1, 3)
        with pytest.raises(ReplaysUsedUp):
            service.published(1)
    with open_service(tmp_path, server, groups=groups) as service:
        [group] = service.groups(timeout=60)
        assert group.rewards == [1.0]


def test_partial_delivers_a_group_without_the_attempts_that_infrastructure_lost(
    tmp_path: Path, server: OpenAIServer
) -> None:
    groups = Groups(n=3, infrastructure=partial(min=2), max_failures=1)
    with open_service(tmp_path, server, groups=groups, num_rollouts=1) as service:
        service.add([task("one", fails=1, folder=str(tmp_path)), task("two", fails=2, folder=str(tmp_path))])
        [group] = service.groups(timeout=60)
        assert service.status().dropped == 1, "of `two` only one attempt is left"
    assert group.id == "one"
    assert group.attempts == [2, 3]
    assert [(one.attempt, one.status, one.kind) for one in group.failures] == [(1, "infrastructure", "environment")]
    assert {one.attempt for one in group.samples} == {2, 3}


def test_drop_drops_a_group_and_counts_it(tmp_path: Path, server: OpenAIServer) -> None:
    groups = Groups(n=3, infrastructure="drop", max_failures=1)
    with open_service(tmp_path, server, groups=groups, num_rollouts=1) as service:
        service.add([task("bad", fails=1, folder=str(tmp_path)), task("good")])
        assert [group.id for group in service.groups(timeout=60)] == ["good"]
        assert service.status().dropped == 1


def test_failures_of_the_agent_are_samples_with_what_was_sampled(tmp_path: Path, server: OpenAIServer) -> None:
    groups = Groups(n=1, failure_reward=-1.0)
    with open_service(tmp_path, server, groups=groups, timeout=1.0) as service:
        service.add([task("bug", "raise"), task("slow", "hang"), task("fine")])
        found = {group.id: group.samples[0] for group in service.groups(timeout=60)}
    assert {name: (one.status, one.reward) for name, one in found.items()} == {
        "bug": ("failed", -1.0),
        "slow": ("timed out", -1.0),
        "fine": ("completed", 1.0),
    }
    assert len({sum(one.mask) for one in found.values()}) == 1, "what was sampled before the failure is there"


def test_an_endpoint_without_token_ids_is_an_error_at_the_first_reply(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server, num_rollouts=1, extra_body=NO_TOKENS) as service:
        service.add(epochs([task("a")]))
        with pytest.raises(TokensMissing, match="return_token_ids"):
            list(service.groups(timeout=60))
        assert server.seen.requests <= 2


def test_a_task_without_an_answer_is_an_error_and_not_reward_0(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        service.add([{"id": "a", "question": "what?"}])
        with pytest.raises(RewardMissing, match="expected answer"):
            list(service.groups(timeout=60))


def test_an_endpoint_that_refuses_all_requests_stops_the_service(tmp_path: Path) -> None:
    script = Script(faults=[Fault(401, message="wrong key")])
    with OpenAIServer(script) as server, open_service(tmp_path, server) as service:
        service.add([task("a")])
        with pytest.raises(UsageError, match="wrong key"):
            list(service.groups(timeout=60))


def test_wrong_tasks_and_settings_are_rejected(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        with pytest.raises(BadData, match=r"tasks:2: no question"):
            service.add([task("a"), {"id": "b"}])
        with pytest.raises(RunBusy), open_service(tmp_path, server):
            pass
        with pytest.raises(ConfigError):
            service.published(-1)
    with pytest.raises(ServiceStopped):
        service.add([task("a")])
    for wrong in ({"model": "demo"}, {"timeout": None}, {"attempts": 3}, {"cache": True}):
        with pytest.raises(ConfigError):
            RolloutService(config(tmp_path, **wrong), server.url, Groups(n=2))
    with (
        pytest.raises(ConfigError, match="remove `data`"),
        open_service(tmp_path, server, data=tmp_path / "tasks.jsonl"),
    ):
        pass
    for wrong_groups in ({"n": 0}, {"infrastructure": "ignore"}, {"n": 2, "infrastructure": partial(min=3)}):
        with pytest.raises(ConfigError):
            Groups(**wrong_groups)
    assert "secret" not in repr(Endpoint("http://h", "m", "secret"))


def test_a_generator_is_read_only_as_far_as_needed(tmp_path: Path, server: OpenAIServer) -> None:
    drawn: list[int] = []

    def endless() -> Iterator[Any]:
        for number in itertools.count():
            drawn.append(number)
            yield task(f"t{number}")

    with open_service(tmp_path, server, n=1, max_staleness=1) as service:
        service.add(endless())
        wait_until(lambda: service.status().finished == 2, what="both groups of two versions have finished")
        most = len(drawn)
        assert most <= 2 + 4, "admitted, waiting, and one in the hand of the reader"
        groups = service.groups(timeout=60)
        for version in range(1, 6):
            next(groups).accept()
            service.published(version)
        assert len(drawn) <= most + 6


def test_a_generator_that_raises_stops_the_service(tmp_path: Path, server: OpenAIServer) -> None:
    def broken() -> Iterator[Any]:
        yield task("a")
        raise KeyError("no more")

    with open_service(tmp_path, server) as service:
        service.add(broken())
        with pytest.raises(UsageError, match="generator of tasks raised KeyError"):
            list(service.groups(timeout=60))


def test_add_blocks_while_enough_tasks_wait(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server, n=1, max_staleness=0) as service:
        service.add([task(f"t{number}") for number in range(1100)])
        with pytest.raises(TimeoutError, match="tasks were waiting"):
            service.add([task("more")], timeout=0.05)
        assert service.status().waiting >= 1099


def test_a_slow_group_is_awaited_before_it_becomes_too_stale(tmp_path: Path, server: OpenAIServer) -> None:
    release = tmp_path / "release"
    with open_service(tmp_path, server, n=2, max_staleness=1) as service:
        service.add([task("slow", waits=str(release)), *(task(f"t{number}") for number in range(5))])
        groups = service.groups(timeout=60)
        next(groups).accept()
        service.published(1)
        wait_until(lambda: service.status().finished > 0, what="another group has finished")
        assert "too stale" in service.status().waits_for
        with pytest.raises(TimeoutError):
            service.next_group(timeout=0.05)
        release.touch()
        slow = service.next_group(timeout=60)
        assert slow is not None
        assert (slow.id, slow.staleness) == ("slow", 1)
        for version, group in enumerate(service.groups(timeout=60), 2):
            assert group.staleness <= 1
            group.accept()
            service.published(version)


def test_versions_of_turns_are_those_that_were_published(tmp_path: Path, server: OpenAIServer) -> None:
    release = tmp_path / "release"
    with open_service(tmp_path, server, n=1) as service:
        service.published(7)
        service.add([task("a", waits=str(release))])
        wait_until(lambda: server.seen.answered == 1, what="the first turn was sampled")
        service.pause()
        service.published(8)
        service.resume()
        release.touch()
        [group] = service.groups(timeout=60)
    assert [turn.version for turn in group.samples[0].turns] == [7, 8]
    assert (group.version, group.staleness) == (8, 1)


def test_no_request_is_sent_during_a_pause(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server, n=1) as service:
        service.pause()
        service.add([task("a")])
        wait_until(lambda: service.status().rollouts == 1, what="a rollout is under way")
        with pytest.raises(TimeoutError):
            service.next_group(timeout=0.3)
        assert server.seen.requests == 0
        assert service.status().waits_for == "resume()"
        service.resume()
        assert [group.id for group in service.groups(timeout=60)] == ["a"]


def test_groups_can_be_awaited(tmp_path: Path, server: OpenAIServer) -> None:
    async def train(service: RolloutService) -> list[str]:
        return [group.id async for group in service.groups_async(timeout=60)]

    with open_service(tmp_path, server) as service:
        service.add([task("a"), task("b")])
        assert sorted(asyncio.run(train(service))) == ["a", "b"]


def test_a_waiting_trainer_is_woken_when_the_service_is_closed(tmp_path: Path, server: OpenAIServer) -> None:
    raised: list[BaseException] = []
    with open_service(tmp_path, server) as service:
        service.add([task("a", waits=str(tmp_path / "never"))])

        def train() -> None:
            try:
                service.next_group()
            except ServiceStopped as error:
                raised.append(error)

        trainer = threading.Thread(target=train)
        trainer.start()
        wait_until(lambda: service.status().rollouts == 2, what="the rollouts are under way")
    trainer.join(30)
    assert len(raised) == 1


def test_if_the_session_fails_the_next_call_raises(
    tmp_path: Path, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with open_service(tmp_path, server) as service:
        monkeypatch.setattr("paragent.training.group_queue.GroupQueue.recorded", broken)
        service.add([task("a")])
        with pytest.raises(Exception, match="a bug"):
            list(service.groups(timeout=60))
        with pytest.raises(Exception, match="a bug"):
            service.status()


def test_rollouts_of_a_continued_run_have_the_version_of_the_checkpoint(tmp_path: Path, server: OpenAIServer) -> None:
    with open_service(tmp_path, server) as service:
        service.published(3)
        service.add([task("a")])
        service.next_group(timeout=60)
    with open_service(tmp_path, server, version=4) as service:
        assert service.status().version == 4
        service.add([task("b")])
        versions = {group.id: group.samples[0].versions for group in service.groups(timeout=60)}
    assert versions == {"a": [3], "b": [4]}
    with pytest.raises(ConfigError, match="version must be"):
        open_service(tmp_path, server, version=-1)
