"""Groups and samples for trainers, and the client of `paragent training serve`.

This file needs only the standard library and works alone: copy it into the image of a trainer that has no paragent. In the
same process as the trainer, `paragent.training.RolloutService` has the same interface and delivers the same groups.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import logging
import math
import sys
import threading
import time
import uuid
import weakref
from array import array
from collections.abc import Sized
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

try:
    from paragent.errors import (
        AccessDenied,
        GroupNotOwed,
        ParagentError,
        ReplaysUsedUp,
        RewardMissing,
        ServerLost,
        ServiceStopped,
        TokensMissing,
        UsageError,
    )
except ModuleNotFoundError:  # this file was copied

    class ParagentError(Exception):  # type: ignore[no-redef]
        """The base class of all errors of the service."""

    class UsageError(ParagentError):  # type: ignore[no-redef]
        """The caller has to change the call."""

    class AccessDenied(UsageError):  # type: ignore[no-redef]
        """The token is wrong."""

    class GroupNotOwed(UsageError):  # type: ignore[no-redef]
        """The group was accepted or dropped before, or does not exist."""

    class RewardMissing(UsageError):  # type: ignore[no-redef]
        """A rollout ended and has no score."""

    class ServiceStopped(UsageError):  # type: ignore[no-redef]
        """The service delivers no more groups."""

    class TokensMissing(UsageError):  # type: ignore[no-redef]
        """The model endpoint returns no token ids."""

    class ReplaysUsedUp(ParagentError):  # type: ignore[no-redef]
        """A rollout failed too many times in a row because of infrastructure."""

    class ServerLost(ParagentError):  # type: ignore[no-redef]
        """The service cannot be reached."""


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

__all__ = [
    "AttemptFailure",
    "Group",
    "RemoteRolloutService",
    "Sample",
    "ServiceStatus",
    "Turn",
    "group_from_json",
    "group_to_json",
]

_log = logging.getLogger("paragent.training")
_ERRORS: dict[str, type[ParagentError]] = {
    one.__name__: one
    for one in (AccessDenied, GroupNotOwed, ReplaysUsedUp, RewardMissing, ServiceStopped, TokensMissing, UsageError)
}
_WAIT = 20.0
"""Seconds that one request for groups waits at the service."""
_REQUEST_TIMEOUT = 60.0
"""Seconds for the answer to a request, beyond the time that it asks the service to wait."""
_RETRY_SECONDS = 1.0
_BATCH = 100
"""Tasks in one request."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call of a sample."""

    step: int
    """The number of its step in the trajectory."""
    start: int
    """The tokens that it sampled are `token_ids[start:end]`."""
    end: int
    """The position after the last token of the reply."""
    version: int | None
    """The version of the policy that sampled them; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence of tokens of an attempt, as they were sampled.

    An attempt whose agent rewrote its history, or had several conversations, has several samples with the same reward. Their
    weights add up to 1, so a loss that is multiplied by `weight` counts each attempt once.
    """

    task_id: str
    """The id of the task."""
    attempt: int
    """Counted from 1."""
    branch: int
    """The number of the sequence within its attempt, counted from 0."""
    token_ids: list[int]
    """All tokens of the conversation."""
    mask: list[int]
    """1 for sampled tokens; 0 for all others: prompts, results of tools."""
    logprobs: list[float] | None
    """The log probability of each sampled token, 0.0 for the others; None if the endpoint returned none."""
    reward: float
    """The score of the rollout."""
    status: str
    """`completed`, `failed` (the agent failed) or `timed out`."""
    turns: list[Turn]
    """The replies of the model, with the positions of their tokens."""
    weight: float = 1.0
    """1 divided by the number of samples of the attempt."""

    def __repr__(self) -> str:
        """Return a short text, because sequences have thousands of tokens."""
        tokens = f"{len(self.token_ids)} tokens, {sum(self.mask)} sampled"
        return (
            f"<Sample {self.task_id!r} attempt {self.attempt} branch {self.branch}: {tokens}, reward {self.reward:g}>"
        )

    @property
    def versions(self) -> list[int]:
        """The versions of the policy that sampled tokens, ascending."""
        return sorted({turn.version for turn in self.turns if turn.version is not None})

    def arrays(self) -> dict[str, Any]:
        """Return the tokens as numpy arrays: `token_ids` (int32), `mask` (uint8) and, if there are any, `logprobs` (float64)."""
        import numpy as np

        arrays = {"token_ids": np.array(self.token_ids, np.int32), "mask": np.array(self.mask, np.uint8)}
        return arrays if self.logprobs is None else {**arrays, "logprobs": np.array(self.logprobs, np.float64)}


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """An attempt that has no sample and no reward: infrastructure failed, or a user cancelled it."""

    attempt: int
    """The number of the attempt, from 1."""
    status: str
    """`infrastructure` or `cancelled`."""
    kind: str
    """What failed: `endpoint`, `worker`, `machine`, `environment`."""
    error: str
    """The failure in one sentence."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Group:
    """All attempts at one task. The trainer calls `accept` when it needs the group no more."""

    id: str
    """The id of the task."""
    task: dict[str, Any]
    """`id`, `question`, `answer` and `metadata`."""
    samples: list[Sample]
    """By attempt and branch."""
    attempts: list[int]
    """The attempts that have a reward."""
    rewards: list[float]
    """The reward of each of these attempts. An attempt that failed before it sampled a token has a reward and no sample."""
    failures: list[AttemptFailure]
    """The other attempts."""
    version: int
    """The current version of the policy when the group was delivered."""
    delivery: str
    """Identifies this delivery."""
    _accept: Callable[[Group], None] = field(repr=False)
    accepted: bool = False
    """Whether the trainer has accepted it."""

    @property
    def staleness(self) -> int:
        """How many versions were published since the oldest turn of the group was sampled."""
        versions = [version for sample in self.samples for version in sample.versions]
        return max(0, self.version - min(versions)) if versions else 0

    def advantages(self, *, scaled: bool = True) -> list[float]:
        """Return the advantage of each sample: the reward of its attempt minus the mean of all attempts of the group.

        Args:
            scaled: divide by the standard deviation, as GRPO does; all are 0 if all rewards are equal.
        """
        mean = math.fsum(self.rewards) / len(self.rewards)
        deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in self.rewards) / len(self.rewards))
        scale = (1.0 / deviation if deviation > 1e-12 else 0.0) if scaled else 1.0
        return [(sample.reward - mean) * scale for sample in self.samples]

    def accept(self) -> None:
        """Say that the group is not needed any more. When this returns, it is durable, and the group is not delivered again.

        Raises:
            GroupNotOwed: it was accepted before.
        """
        if self.accepted:
            raise GroupNotOwed(f"the group {self.id!r} was accepted before; accept each group once")
        self._accept(self)
        self.accepted = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """What the service is doing. Each group counts once: as waiting, under way, finished, delivered, accepted or dropped."""

    version: int
    """The current version of the policy."""
    waiting: int
    """Tasks that were added and are not admitted."""
    under_way: int
    """Groups that are admitted and have attempts that have not ended."""
    finished: int
    """Groups that wait to be delivered."""
    delivered: int
    """Groups that the trainer has and has not accepted."""
    accepted: int
    """How many groups the trainer has accepted."""
    dropped: int
    """Groups that are not delivered because of infrastructure failures."""
    paused: bool
    """Whether rollouts are paused."""
    rollouts: int
    """Rollouts under way."""
    replays: int
    """Executions of this process that failed because of infrastructure and were repeated."""
    late_versions: int
    """Versions of this process that were published before `groups_per_version` groups were taken, so that groups may be staler
    than `max_staleness`."""
    waits_for: str
    """Why no further group is admitted or delivered now; empty if nothing hinders it."""
    run: str
    """The run directory."""


def group_to_json(group: Group) -> dict[str, Any]:
    """Return a group as JSON values. Arrays are base64 text of little-endian numbers, see docs/howto/training.md."""
    return {
        **{name: getattr(group, name) for name in ("id", "task", "attempts", "rewards", "version", "delivery")},
        "failures": [asdict(one) for one in group.failures],
        "samples": [_sample_to_json(one) for one in group.samples],
    }


def _sample_to_json(sample: Sample) -> dict[str, Any]:
    values = {name: getattr(sample, name) for name in ("attempt", "branch", "reward", "status", "weight")}
    return {
        **values,
        "token_ids": _pack("i", sample.token_ids),
        "mask": _pack("B", sample.mask),
        "logprobs": None if sample.logprobs is None else _pack("d", sample.logprobs),
        "turns": [asdict(turn) for turn in sample.turns],
    }


def group_from_json(values: Mapping[str, Any], accept: Callable[[Group], None]) -> Group:
    """Return the group that `group_to_json` made."""
    samples = [_sample_from_json(values["id"], one) for one in values["samples"]]
    return Group(
        **{name: values[name] for name in ("id", "task", "attempts", "rewards", "version", "delivery")},
        failures=[AttemptFailure(**one) for one in values["failures"]],
        samples=samples,
        _accept=accept,
    )


def _sample_from_json(task: str, values: Mapping[str, Any]) -> Sample:
    return Sample(
        task_id=task,
        **{name: values[name] for name in ("attempt", "branch", "reward", "status", "weight")},
        token_ids=_unpack("i", values["token_ids"]),
        mask=_unpack("B", values["mask"]),
        logprobs=None if values["logprobs"] is None else _unpack("d", values["logprobs"]),
        turns=[Turn(**turn) for turn in values["turns"]],
    )


def _pack(kind: str, numbers: list[Any]) -> str:
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()


def _unpack(kind: str, text: str) -> list[Any]:
    packed = array(kind, base64.b64decode(text))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


class RemoteRolloutService:
    """The interface of `RolloutService` for a service at another address. May be used by several threads.

    A new object that asks for groups takes over: it gets all groups again that were delivered and not accepted, so a trainer
    that was killed and started again misses none. All calls of the object that it replaced, except `status` and `add`, raise
    `UsageError` from then on, also after a restart of the service.

    Args:
        url: the address that `paragent training serve` printed.
        token: its token.
        retry_for: how many seconds calls repeat their request while the service cannot be reached.
    """

    def __init__(self, url: str, token: str, *, retry_for: float = 300.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"the address must be of the form http://HOST:PORT, not {url!r}")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._token, self._retry_for = token, retry_for
        self._consumer = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._taking = threading.Lock()
        """Lets one thread ask for groups at a time: the service repeats its last answer if it was lost."""
        self._held: weakref.WeakValueDictionary[str, Group] = weakref.WeakValueDictionary()
        """Groups that the trainer has. A service that was started again delivers them again; the trainer gets them once."""
        self._error: Exception | None = None
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        self.status()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no further tasks from generators. The service goes on."""
        self._closed.set()

    def add(self, tasks: Iterable[Any]) -> None:
        """Add tasks: dictionaries, or objects with the fields `id`, `question`, `answer` and `metadata`.

        Tasks whose ids were added before are ignored. Blocks while enough tasks are waiting. A generator is read by a thread of
        its own, as far as the service has room.
        """
        self._check()
        if isinstance(tasks, Sized):
            self._send_tasks(tasks)
        else:
            threading.Thread(target=self._send_lazily, args=[tasks], name="paragent-tasks", daemon=True).start()

    def groups(self, timeout: float | None = None) -> Iterator[Group]:
        """Yield groups as they finish; end when all tasks that were added are delivered.

        Args:
            timeout: how many seconds to wait for each group; None: as long as it takes.

        Raises:
            TimeoutError: no group finished in time.
            ParagentError: the service has failed or was stopped.
        """
        while (group := self.next_group(timeout)) is not None:
            yield group

    async def groups_async(self, timeout: float | None = None) -> AsyncIterator[Group]:
        """As `groups`, without blocking the event loop."""
        import asyncio

        while (group := await asyncio.to_thread(self.next_group, timeout)) is not None:
            yield group

    def next_group(self, timeout: float | None = None) -> Group | None:
        """Return the next group; None if all tasks that were added are delivered. Raises the same errors as `groups`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._taking:
            while True:
                self._check()
                left = _WAIT if deadline is None else max(0.0, min(_WAIT, deadline - time.monotonic()))
                answer = self._change("/v1/groups", {"limit": 1, "wait": left}, left)
                group = self._new_group(answer["groups"])
                if group is not None:
                    return group
                if not answer["groups"] and not answer["more"]:
                    return None
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"no group finished within {timeout:g} s")

    def _new_group(self, delivered: list[dict[str, Any]]) -> Group | None:
        """Return the group that was delivered; None if there is none, or the trainer has it already."""
        for values in delivered:
            held = self._held.get(values["id"])
            if held is None or held.accepted:
                group = self._held[values["id"]] = group_from_json(values, self._accept)
                return group
            held.delivery = values["delivery"]
        return None

    def _accept(self, group: Group) -> None:
        self._call("POST", "/v1/accept", {"consumer": self._consumer, "group": group.id, "delivery": group.delivery})

    def published(self, version: int) -> None:
        """Say that the endpoint samples with this version of the policy from now on.

        Raises:
            UsageError: the version is not an integer from 0 to 2**63 - 1, or another trainer has taken over.
        """
        self._change("/v1/version", {"version": version})

    def pause(self, timeout: float = 600.0) -> None:
        """Send no requests to the endpoint; return when none is in flight.

        Raises:
            TimeoutError: some are still in flight after `timeout` seconds. The service stays paused.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, min(_WAIT, deadline - time.monotonic()))
            if not self._change("/v1/pause", {"wait": left}, left)["in_flight"]:
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"requests were still in flight {timeout:g} s after the pause began")

    def resume(self) -> None:
        """Send requests again."""
        self._change("/v1/resume", {})

    def status(self) -> ServiceStatus:
        """Return what the service is doing."""
        values = self._call("GET", "/v1/status")
        return ServiceStatus(**{name: values[name] for name in ServiceStatus.__slots__})

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _send_lazily(self, tasks: Iterable[Any]) -> None:
        try:
            for task in tasks:
                if self._closed.is_set():
                    return
                self._send_tasks([task])
        except Exception as error:  # noqa: BLE001 - shown by the next call
            self._error = error

    def _send_tasks(self, tasks: Iterable[Any]) -> None:
        entries = [task if isinstance(task, dict) else asdict(task) for task in tasks]
        for start in range(0, len(entries), _BATCH):
            batch = {"tasks": entries[start : start + _BATCH], "wait": _WAIT}
            while not self._call("POST", "/v1/tasks", batch, _WAIT)["stored"]:
                if self._closed.is_set():
                    return

    def _change(self, path: str, body: dict[str, Any], wait: float = 0.0) -> Any:
        """Send a request with the name of this trainer and a number, by which the service recognises late and repeated ones."""
        return self._call("POST", path, {"consumer": self._consumer, "request": next(self._numbers), **body}, wait)

    def _call(self, method: str, path: str, body: Any = None, wait: float = 0.0) -> Any:
        """Send a request, again if the connection breaks: the service answers a repeated request without a second effect."""
        give_up = time.monotonic() + self._retry_for
        warned = False
        while True:
            try:
                status, answer = self._request(method, path, body, wait)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = f"the rollout service at {self._host}:{self._port} cannot be reached: {error}"
                if time.monotonic() > give_up:
                    raise ServerLost(problem) from error
                if not warned:
                    _log.warning("%s; trying again for %g s", problem, self._retry_for)
                    warned = True
                time.sleep(_RETRY_SECONDS)
                continue
            if status == 200:
                return answer
            reported = answer.get("error") or {"message": f"HTTP status {status}"}
            kind, message = str(reported.get("type")), reported["message"]
            raise _ERRORS[kind](message) if kind in _ERRORS else ParagentError(f"{kind}: {message}")

    def _request(self, method: str, path: str, body: Any, wait: float) -> tuple[int, Any]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_REQUEST_TIMEOUT + wait)
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            connection.request(method, self._path + path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()
