"""Settings of groups, and how the stored results of a group become samples."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from paragent._internal.text import well_formed_data
from paragent._internal.validation import integer, number
from paragent.errors import BadData, ConfigError, TokensMissing
from paragent.rollout.dataset import read_task
from paragent.store import AttemptResult, RolloutStatus
from paragent.tasks import BenchmarkTask
from paragent.training.client import AttemptFailure, Sample, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paragent.store import GroupStore

__all__ = ["Endpoint", "Groups", "Partial", "build_samples", "epochs", "has_reward", "partial", "read_tasks"]


@dataclass(frozen=True, slots=True)
class Partial:
    """Deliver a group without the attempts that failed because of infrastructure, if at least `min` attempts are left."""

    min: int
    """The smallest number of attempts with which a group is delivered."""


def partial(*, min: int) -> Partial:  # noqa: A002 - reads as in the documentation: partial(min=4)
    """Return the policy that delivers a group with at least `min` attempts."""
    return Partial(integer(min, "min", least=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The settings of groups.

    Raises:
        ConfigError: a value is out of range.
    """

    n: int = 8
    """The attempts at each task."""
    infrastructure: str | Partial = "replay"
    """What happens to an attempt that failed `max_failures` times in a row because of infrastructure. `replay`: the service
    raises `ReplaysUsedUp`, and the group stays owed. `partial(min=k)`: its group is delivered without it, with at least k
    attempts, or else dropped. `drop`: its group is dropped. Until then it is executed again in all cases."""
    max_failures: int = 8
    """How often in a row an attempt may fail because of infrastructure."""
    failure_reward: float = 0.0
    """The reward of an attempt whose agent failed or exceeded its time limit."""

    def __post_init__(self) -> None:
        integer(self.n, "n", least=1)
        integer(self.max_failures, "max_failures", least=1)
        number(self.failure_reward, "failure_reward")
        if isinstance(self.infrastructure, Partial):
            if self.infrastructure.min > self.n:
                raise ConfigError(
                    f"partial(min={self.infrastructure.min}) needs at least that many attempts, not n={self.n}"
                )
        elif self.infrastructure not in {"replay", "drop"}:
            raise ConfigError(f"infrastructure must be 'replay', 'drop' or partial(min=k), not {self.infrastructure!r}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint that serves the policy."""

    url: str
    """Such as `http://policy:8000/v1`."""
    model: str | None = None
    """The name of the model there; None: the model of the configuration."""
    api_key: str | None = None
    """None: the endpoint needs no key."""

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r}, model={self.model!r})"  # never the key


def read_tasks(tasks: Iterable[Any]) -> list[BenchmarkTask]:
    """Return tasks that are given as `BenchmarkTask` or as dictionaries with the keys of a benchmark file.

    A dictionary without an id gets a digest of its content as its id.

    Raises:
        BadData: one of them is not a task, or has values that JSON does not have.
    """
    read: list[BenchmarkTask] = []
    problems: list[tuple[int, str]] = []
    for position, task in enumerate(tasks, 1):
        try:
            found = task if isinstance(task, BenchmarkTask) else read_task(well_formed_data(task), _digest(task))
            json.dumps(asdict(found), allow_nan=False)  # groups are sent as JSON
            read.append(found)
        except (TypeError, ValueError) as error:
            problems.append((position, str(error)))
    if problems:
        raise BadData("tasks", problems)
    return read


def _digest(task: Any) -> str:
    return hashlib.sha256(json.dumps(task, sort_keys=True, default=str).encode()).hexdigest()[:16]


def epochs(tasks: Iterable[Any], number: int | None = None) -> Iterator[BenchmarkTask]:
    """Yield tasks several times, with an id of its own each time, as `2/TASK` for the second; endlessly without a `number`."""
    once = read_tasks(tasks)
    epoch = 0
    while once and (number is None or epoch < number):
        epoch += 1
        for task in once:
            yield BenchmarkTask(f"{epoch}/{task.id}", task.question, task.answer, task.metadata)


def has_reward(result: AttemptResult) -> bool:
    """Return whether a result counts for training: it says something about the agent."""
    return result.status.measured


def build_samples(
    store: GroupStore, task: BenchmarkTask, groups: Groups
) -> tuple[list[Sample], list[int], list[float], list[AttemptFailure]]:
    """Return the samples of a group, its attempts with their rewards, and the attempts without.

    Raises:
        TokensMissing: an attempt was completed, and no token of it was recorded.
        StoreFailed: a trajectory cannot be read.
    """
    samples: list[Sample] = []
    attempts: list[int] = []
    rewards: list[float] = []
    failures: list[AttemptFailure] = []
    for result in store.results(task.id):
        if not has_reward(result):
            failures.append(AttemptFailure(result.attempt, str(result.status), result.kind, result.error))
            continue
        reward = _reward(result, groups)
        attempts.append(result.attempt)
        rewards.append(reward)
        trajectory = store.trajectory(result.number) or {}
        sequences = trajectory.get("tokens") or []
        if not sequences and result.status is RolloutStatus.COMPLETED:
            raise TokensMissing(
                f"the rollout {task.id}#{result.attempt} was completed, and none of its tokens were recorded: its agent "
                "did not ask the model of the run. Use `episode.complete`, or the address of the gateway that agents get"
            )
        samples += [_sample(task.id, result, reward, branch, sequences) for branch in range(len(sequences))]
    return samples, attempts, rewards, failures


def _reward(result: AttemptResult, groups: Groups) -> float:
    if result.status is RolloutStatus.COMPLETED and result.score is not None:
        return result.score
    return groups.failure_reward


def _sample(task: str, result: AttemptResult, reward: float, branch: int, sequences: list[dict[str, Any]]) -> Sample:
    one = sequences[branch]
    turns = [Turn(turn["step"], turn["start"], turn["end"], turn.get("version")) for turn in one["turns"]]
    return Sample(
        task_id=task,
        attempt=result.attempt,
        branch=branch,
        token_ids=one["token_ids"],
        mask=one["mask"],
        logprobs=one.get("logprobs"),
        reward=reward,
        status=str(result.status),
        turns=turns,
        weight=1.0 / len(sequences),
    )
