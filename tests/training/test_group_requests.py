"""Batches of tasks for trainers that ask for rollouts and wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from paragent.errors import ConfigError, ServiceStopped, UsageError
from paragent.testing import OpenAIServer, Script
from paragent.training import Groups, RolloutService
from paragent.training.adapters.group_requests import GroupRequests, attempt_samples, question_of, split
from tests.training.policy import LOOK, config, task

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RolloutService]:
    with (
        OpenAIServer(Script(default=[LOOK, "42"])) as endpoint,
        RolloutService(config(tmp_path, engine="inline"), endpoint.url, Groups(n=2), max_staleness=1) as service,
    ):
        yield service


def questions(*texts: str) -> list[dict[str, str]]:
    return [{"question": text, "answer": "42"} for text in texts]


async def test_batches_at_the_same_time_get_their_own_groups_in_order(service: RolloutService) -> None:
    requests = GroupRequests(service)
    batches = [questions(*(f"question {batch} {number}" for number in range(5))) for batch in range(3)]
    answers = await asyncio.gather(*map(requests.run, batches))
    asked = [[task["question"] for task in batch] for batch in batches]
    assert [[group.task["question"] for group in groups] for groups in answers] == asked
    assert service.status().accepted == 15


async def test_groups_of_an_earlier_process_are_accepted_and_not_used(service: RolloutService) -> None:
    service.add([task("old")])
    [group] = await GroupRequests(service).run(questions("new"))
    assert group.task["question"] == "new"
    [later] = await GroupRequests(service).run(questions("later"))
    assert later.task["question"] == "later"
    assert service.status().accepted == 3


async def test_a_service_that_ends_is_an_error_of_all_batches(service: RolloutService) -> None:
    requests = GroupRequests(service)
    assert len(await requests.run(questions("first"))) == 1
    service.close()
    with pytest.raises(ServiceStopped):
        await requests.run(questions("second"))


async def test_a_version_that_could_not_be_published_is_published_later(service: RolloutService) -> None:
    requests = GroupRequests(service)
    with pytest.raises(ConfigError):
        requests.publish(-1)
    for _ in range(2):
        requests.publish(3)
    assert (service.status().version, service.status().late_versions) == (3, 0)


async def test_one_sequence_for_each_attempt(service: RolloutService) -> None:
    [group, rewritten] = await GroupRequests(service).run(questions("question", "rewrite"))
    first, second = attempt_samples(group, 2)
    assert (first.attempt, second.attempt) == (1, 2)
    prompt, response, mask, logprobs = split(first)
    assert prompt + response == first.token_ids
    assert (mask[0], len(mask)) == (1, len(response))
    assert logprobs is not None
    assert len(logprobs) == len(response)
    with pytest.raises(UsageError, match="trainer wants 3"):
        attempt_samples(group, 3)
    with pytest.raises(UsageError, match="several sequences"):
        attempt_samples(rewritten, 2)


def test_question_is_the_last_user_message() -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, {"role": "user", "content": "c"}]
    assert (question_of(messages), question_of("d")) == ("c", "d")
    with pytest.raises(UsageError, match="must have a user message"):
        question_of([{"role": "system", "content": "a"}])
