"""Batches of tasks for trainers that ask for rollouts and wait for them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from paragent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.training.client import Group, RemoteRolloutService, Sample
    from paragent.training.service import RolloutService

__all__ = ["GroupRequests", "attempt_samples", "question_of", "split"]

_POLL_SECONDS = 1.0
"""Seconds after which the thread looks whether somebody still waits for groups."""


class GroupRequests:
    """Executes batches of tasks, also several at once, and returns their groups.

    Such a trainer repeats its request when it continues from its checkpoint. Therefore each group is accepted when it is
    returned, and groups that an earlier process asked for are accepted and not used.

    Args:
        service: the service, which is open. Its `max_staleness` must be at least 1, because a trainer may ask for more groups
            (to evaluate the policy) than it trains with one version.
    """

    def __init__(self, service: RolloutService | RemoteRolloutService) -> None:
        self._service = service
        self._prefix = uuid.uuid4().hex[:8]
        self._number = 0
        self._changing = threading.Lock()
        """Protects the fields below."""
        self._waiting: dict[str, Future[Group]] = {}
        self._thread: threading.Thread | None = None

    def publish(self, version: int) -> None:
        """Publish a version; the current one changes nothing."""
        self._service.published(version)

    async def run(self, tasks: Sequence[Mapping[str, Any]]) -> list[Group]:
        """Execute tasks and return their groups in order.

        Args:
            tasks: dictionaries with `question`, `answer` and `metadata`; they get new ids.
        """
        futures: dict[str, Future[Group]] = {}
        entries = []
        with self._changing:
            for task in tasks:
                self._number += 1
                name = f"{self._prefix}-{self._number}"
                futures[name] = self._waiting[name] = Future()
                entries.append({**task, "id": name})
            if self._thread is None:
                self._thread = threading.Thread(target=self._deliver, name="paragent-groups", daemon=True)
                self._thread.start()
        try:
            await asyncio.to_thread(self._service.add, entries)
            return await asyncio.gather(*(asyncio.wrap_future(future) for future in futures.values()))
        finally:
            with self._changing:
                for name in futures:
                    self._waiting.pop(name, None)

    def _deliver(self) -> None:
        """Give groups to those who wait for them, until nobody does."""
        while True:
            with self._changing:
                if not self._waiting:
                    self._thread = None
                    return
            try:
                group = self._service.next_group(_POLL_SECONDS)
            except TimeoutError:
                continue
            except Exception as error:  # noqa: BLE001 - raised where somebody waits
                self._fail(error)
                return
            if group is None:  # the tasks are about to be added
                threading.Event().wait(0.01)
                continue
            group.accept()
            with self._changing:
                future = self._waiting.pop(group.id, None)
            if future is not None and not future.done():
                future.set_result(group)

    def _fail(self, error: Exception) -> None:
        with self._changing:
            self._thread = None
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)


def question_of(messages: Any) -> str:
    """Return the text of the last user message of a prompt.

    Raises:
        UsageError: there is none.
    """
    if isinstance(messages, str):
        return messages
    texts = [message["content"] for message in messages if message["role"] == "user"]
    if not texts or not isinstance(texts[-1], str):
        raise UsageError(f"a prompt must have a user message with text: {messages!r}")
    return texts[-1]


def attempt_samples(group: Group, wanted: int) -> list[Sample]:
    """Return one sample for each attempt of a group.

    Raises:
        UsageError: an attempt has no sample, or several, or the group has not `wanted` attempts.
    """
    samples = {sample.attempt: sample for sample in group.samples}
    if len(samples) != len(group.samples):
        raise UsageError(
            f"an attempt at {group.id!r} has several sequences of tokens: its agent rewrote its history, or the endpoint "
            "renders it differently. This trainer takes one sequence for each attempt"
        )
    if len(samples) != wanted:
        raise UsageError(
            f"the group {group.id!r} has {len(samples)} attempts with tokens, and the trainer wants {wanted}"
        )
    return [samples[attempt] for attempt in sorted(samples)]


def split(sample: Sample) -> tuple[list[int], list[int], list[int], list[float] | None]:
    """Return the prompt, the response from the first sampled token on, and the mask and log probabilities of the response."""
    start = sample.turns[0].start
    logprobs = None if sample.logprobs is None else sample.logprobs[start:]
    return sample.token_ids[:start], sample.token_ids[start:], sample.mask[start:], logprobs
