"""`RolloutService`: executes rollouts for a trainer in the same process, and delivers them in groups."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from paragent._internal.tracebacks import described
from paragent._internal.validation import integer
from paragent.errors import BadData, ConfigError, InfrastructureError, ParagentError, ServiceStopped, UsageError
from paragent.models.base import MODELS
from paragent.models.tokens import TOKEN_IDS
from paragent.rollout.config import RolloutConfig
from paragent.rollout.prepare import prepare_without_tasks
from paragent.rollout.session import RolloutSession
from paragent.store import JOURNAL_FILE
from paragent.training.client import ServiceStatus
from paragent.training.group_queue import MOST_WAITING, GroupQueue
from paragent.training.groups import Endpoint, Groups, read_tasks
from paragent.training.replay import ReplayPolicy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from pathlib import Path

    from paragent.rollout.prepare import RolloutPlan
    from paragent.training.client import Group

__all__ = ["RolloutService"]

T = TypeVar("T")
_log = logging.getLogger("paragent.training")
_NO_KEY = "none"
"""The key for an endpoint that needs none; clients of the OpenAI protocol always send one."""
_READ_AHEAD = 2
"""Tasks of a generator that wait, beyond the groups of one version."""
_STOP_SECONDS = 120.0
"""Seconds for the session to end: workers are cancelled within 6 s, and stopping machines takes longest."""
_NOTICE_SECONDS = 30.0
"""Seconds after which `add` says that it waits."""


class RolloutService:
    """Executes rollouts for a trainer. A context manager; may be used by several threads.

    The run directory of the configuration has everything that must survive this process. A service with the same configuration
    continues it: groups that were not accepted are delivered again.

    Args:
        config: the settings of the run, without `data`; `groups` replaces `attempts`.
        endpoint: the endpoint that serves the policy: its address, or an `Endpoint`.
        groups: the settings of groups.
        max_staleness: how many versions of the policy may be published between the oldest turn of a group and its delivery,
            if at least `groups_per_version` groups are taken between two versions.
        groups_per_version: how many groups the trainer takes at least between two versions.
        version: the version that the endpoint serves now; None: the one that was published last, 0 in a new run. A trainer
            that continues from a checkpoint names the version of the checkpoint, because it may have been killed before it
            published that version.

    Raises:
        ConfigError: a setting is wrong.
        UsageError, RunBusy, StoreFailed: (on entering) the run cannot start; the message says why.
    """

    def __init__(
        self,
        config: RolloutConfig,
        endpoint: str | Endpoint,
        groups: Groups | None = None,
        max_staleness: int = 4,
        groups_per_version: int = 1,
        version: int | None = None,
    ) -> None:
        self._endpoint = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self._groups = groups or Groups()
        integer(max_staleness, "max_staleness", least=0)
        integer(groups_per_version, "groups_per_version", least=1)
        if version is not None:
            integer(version, "version", least=0)
        self._config = _training_config(config, self._endpoint, self._groups)
        self._policy = ReplayPolicy(self._groups, config.run.give_up_after)
        self._queue = GroupQueue(self._groups, max_staleness, groups_per_version, self._policy)
        self._read_ahead = groups_per_version + _READ_AHEAD
        self._session: RolloutSession | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._version = version
        self._closed = False
        self.path: Path
        """The run directory."""

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise UsageError("this service was used before; create another one")
        plan = _plan(self._config, self._endpoint)
        self.path = plan.path
        self._thread = threading.Thread(target=self._run, args=[plan], name="paragent-training", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._session is None:
            assert self._queue.error is not None, "the thread has ended"
            raise self._queue.error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the rollouts under way and end the session; idempotent. Groups that are not accepted stay owed."""
        if self._closed or self._thread is None:
            return
        self._closed = True
        self._queue.end(ServiceStopped("the service was closed"))
        if self._session is not None:
            self._session.stop("the service was closed")
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            _log.warning(
                "the session of %s has not ended after %g s; it ends with this process", self.path, _STOP_SECONDS
            )
        elif self._session is not None:
            self._queue.close()

    def _run(self, plan: RolloutPlan) -> None:
        """Execute the session, in a thread of its own. When it has ended, calls of the trainer raise."""
        try:
            with RolloutSession(plan, self._queue) as session:
                self._queue.open(plan.path / JOURNAL_FILE, self._version)
                self._queue.wake = session.wake
                self._session = session
                self._started.set()
                session.run()
            self._queue.end(self._policy.error or ServiceStopped(session.stopped or "the run has ended"))
        except ParagentError as error:
            self._queue.end(error)
        except BaseException as error:  # noqa: BLE001 - the trainer must know, whatever it is
            failure = InfrastructureError(f"the rollout service failed: {described(error)}")
            failure.__cause__ = error
            self._queue.end(failure)
        finally:
            self._started.set()

    # --- tasks and groups -------------------------------------------------------------------------------------------------

    def add(self, tasks: Iterable[Any], timeout: float | None = None) -> None:
        """Add tasks: `BenchmarkTask` objects, or dictionaries with the keys of a benchmark file.

        Tasks whose ids were added before, also to this run directory by an earlier process, are ignored. A collection is stored
        before this returns; it blocks while enough tasks are waiting. A generator, which may be endless, is read by a thread
        of its own, only as far as tasks are needed.

        Args:
            tasks: the tasks.
            timeout: how many seconds to wait at most; None: as long as it takes.

        Raises:
            BadData: one of them is not a task; none of a collection was added.
            TimeoutError: enough tasks were waiting all the time; none was added.
            ParagentError: the service has ended.
        """
        self._require_open()
        if not isinstance(tasks, Sized):
            self._queue.begin_source()
            threading.Thread(target=self._read, args=[iter(tasks)], name="paragent-tasks", daemon=True).start()
            return
        stored = self.store_tasks(tasks, _NOTICE_SECONDS if timeout is None else timeout)
        if not stored and timeout is None:
            _log.warning("add() waits: %d tasks are waiting. It continues when the trainer takes groups", MOST_WAITING)
            stored = self.store_tasks(tasks, None)
        if not stored:
            raise TimeoutError(
                f"{MOST_WAITING} tasks were waiting for {timeout:g} s; take groups, or add the tasks later"
            )

    def store_tasks(self, tasks: Iterable[Any], timeout: float | None) -> bool:
        """Store tasks; return False if enough tasks were waiting for `timeout` seconds. Raises the same errors as `add`."""
        self._require_open()
        return self._queue.add(read_tasks(tasks), MOST_WAITING, timeout)

    def _read(self, tasks: Iterator[Any]) -> None:
        """Store the tasks of a generator one by one, as they are needed."""
        try:
            for number, task in enumerate(tasks, 1):
                try:
                    [read] = read_tasks([task])
                except BadData as error:
                    reason = error.problems[0][1]
                    raise BadData("tasks", [(number, reason)]) from None
                self._queue.add([read], self._read_ahead)
        except ParagentError as error:
            self._queue.end(error)
        except BaseException as error:  # noqa: BLE001 - the generator is code of the user
            failure = UsageError(f"the generator of tasks raised {described(error)}")
            failure.__cause__ = error
            self._queue.end(failure)
        finally:
            self._queue.end_source()

    def groups(self, timeout: float | None = None) -> Iterator[Group]:
        """Yield groups as they finish; end when all tasks that were added are delivered.

        Args:
            timeout: how many seconds to wait for each group; None: as long as it takes.

        Raises:
            TimeoutError: no group finished in time.
            ParagentError: the service has failed or was stopped; its class says why.
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
        return self.next_encoded_group(timeout, lambda group: group)

    def next_encoded_group(self, timeout: float | None, encode: Callable[[Group], T]) -> T | None:
        """Return what `encode` makes of the next group, as `next_group` does. The group stays owed if `encode` fails.

        Raises:
            UsageError: the group cannot be encoded; the message names its task.
        """
        self._require_open()
        return self._queue.take(timeout, encode)

    def accept(self, group: str, delivery: str) -> None:
        """Accept a delivery of a group by their ids, as `Group.accept` does; a repeated call changes nothing.

        Raises:
            GroupNotOwed: this delivery is not owed.
        """
        self._require_open()
        self._queue.accept(group, delivery)

    def redeliver(self) -> int:
        """Deliver all groups again that were delivered and not accepted; return their number."""
        self._require_open()
        return self._queue.redeliver()

    def take_over(self, trainer: str) -> None:
        """Put a trainer in charge, and deliver to it all groups that are not accepted; nothing if it is in charge.

        Trainers that were in charge before are replaced for ever, also in later processes that continue the run.

        Args:
            trainer: identifies the trainer.

        Raises:
            UsageError: another trainer has replaced it.
        """
        self._require_open()
        self._queue.take_over(trainer)

    def check_trainer(self, trainer: str) -> None:
        """Check that a trainer was not replaced.

        Raises:
            UsageError: another trainer has taken over.
        """
        self._require_open()
        self._queue.check_trainer(trainer)

    # --- the policy -------------------------------------------------------------------------------------------------------

    def published(self, version: int) -> None:
        """Say that the endpoint samples with this version of the policy from now on.

        Versions are integers. Each is usually 1 higher than the one before; a trainer that went back to an earlier checkpoint
        publishes the version of that checkpoint. Publishing the current version again changes nothing.
        """
        self._require_open()
        self._queue.publish(integer(version, "version", least=0))

    def pause(self, timeout: float = 600.0) -> None:
        """Send no requests to the endpoint; return when none is in flight.

        Raises:
            PauseTimeout: some are still in flight after `timeout` seconds. The service stays paused.
        """
        self._require_open()
        self._queue.pause(timeout)

    def resume(self) -> None:
        """Send requests again."""
        self._require_open()
        self._queue.resume()

    @property
    def failure(self) -> ParagentError | None:
        """Why the service has ended or stops, which further calls raise; None while it works."""
        return self._queue.error

    def status(self) -> ServiceStatus:
        """Return what the service is doing."""
        self._require_open()
        if (error := self.failure) is not None:
            raise error
        counts: dict[str, Any] = self._queue.counts()
        assert self._session is not None, "the service is open"
        return ServiceStatus(rollouts=self._session.progress.active, run=str(self.path), **counts)

    def _require_open(self) -> None:
        if self._session is None:
            raise UsageError("use the service in a `with` block")


def _training_config(config: RolloutConfig, endpoint: Endpoint, groups: Groups) -> RolloutConfig:
    """Return the configuration with the model of the endpoint and the attempts of a group.

    Raises:
        ConfigError: a setting cannot be used for training.
    """
    model = endpoint.model or config.model.name
    if model in MODELS.names():
        raise ConfigError(
            f"training needs a model of an endpoint, not the built-in {model!r}: name it in the configuration"
        )
    if config.run.timeout is None:
        raise ConfigError("training needs a time limit for each rollout: set `timeout` to a number of seconds")
    if config.model.cache:
        raise ConfigError("training needs fresh samples: remove `cache`")
    if config.data.attempts not in {1, groups.n}:
        raise ConfigError(
            f"remove attempts={config.data.attempts}: Groups(n={groups.n}) sets the attempts at each task"
        )
    return RolloutConfig(**{**config.flat(), "model": model, "attempts": groups.n})


def _plan(config: RolloutConfig, endpoint: Endpoint) -> RolloutPlan:
    """Return the plan of the session: its model asks the endpoint for token ids and log probabilities."""
    plan = prepare_without_tasks(config, (endpoint.url, endpoint.api_key or _NO_KEY))
    model = plan.settings.model
    wanted = {**TOKEN_IDS, **model.sampling.extra_body}
    model = replace(model, sampling=replace(model.sampling, extra_body=wanted))
    same = plan.settings.judge == plan.settings.model
    judge = model if same else plan.settings.judge
    return replace(plan, settings=replace(plan.settings, model=model, judge=judge, requires_tokens=True))
