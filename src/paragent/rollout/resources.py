"""Resources of one worker: the model client, the scorer, the pool connection, the environment's shared resources.

They belong to one event loop. They are opened by the first rollout and closed shortly after the last one. `SharedResources` keeps
everything that must be closed, so that there is one order of closing.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.config import ASYNC_CONCURRENCY
from paragent.envs import SharedResources, environment_class
from paragent.errors import UsageError
from paragent.execution import record_usage
from paragent.models import ModelSettings, open_model
from paragent.models.base import count_reply
from paragent.models.required_tokens import TokenRequiringModel
from paragent.rollout.cancelled import CancelledFile
from paragent.rollout.episode import current_episode
from paragent.rollout.live_status import StatusFile
from paragent.rollout.machines import PoolAccess, WorkerLeases
from paragent.scorers import SCORERS, open_scorer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from paragent.gateway import Gateway
    from paragent.mcp import McpSettings
    from paragent.models import Model
    from paragent.rollout.live_status import ActiveRollout
    from paragent.rollout.program_settings import ProgramSettings
    from paragent.scorers import Scorer

__all__ = ["RolloutSettings", "WorkerResources", "ask_judge", "worker_resources"]

_IDLE_TIMEOUT = 6.0
"""Seconds without a rollout after which the resources are closed and the status file, which names executions for some seconds
after their end, is removed. Two rollouts of a run are a few milliseconds apart."""
_INTERVAL = 0.5
"""Seconds between two status reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """Everything that a worker needs to execute the rollouts of a run."""

    run: str
    """Identifies the run: two runs in one process do not share resources."""
    environment: str
    """The name or the location of the environment."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of the environment."""
    model: ModelSettings
    judge: ModelSettings
    agent: str | None = None
    """The location of the agent; None: the built-in chat agent."""
    program: ProgramSettings | None = None
    """The program that is the agent; None: the agent runs in the worker."""
    agent_metadata: tuple[str, ...] = ()
    """Fields of the task's metadata that a program or function gets."""
    metric: str | None = None
    """The scorer that decides; None: the environment's own."""
    max_turns: int = 100
    mcp: McpSettings | None = None
    """The MCP servers whose tools the agent can call."""
    timeout: float | None = None
    isolated: bool = False
    """Whether the worker executes one rollout at a time, so that environment variables belong to it."""
    requires_tokens: bool = False
    """Whether replies of the model without token ids are errors, as in training."""
    machines: PoolAccess | None = None
    """The pool, for environments that need a machine."""
    live: str | None = None
    """The folder of status files."""
    supervised: bool = False
    """Whether each rollout is one call of an engine, which ends it if it blocks the event loop."""


class WorkerResources:
    """The open resources of one worker and run.

    Raises:
        UsageError: the environment, the model or the scorer cannot be used here.
    """

    def __init__(self, settings: RolloutSettings) -> None:
        self.settings = settings
        self.environment_class = environment_class(settings.environment)
        self.shared = SharedResources()
        self.model = self._judge = self.shared.add(("worker", "model"), open_model(settings.model))
        if settings.judge != settings.model:
            self._judge = self.shared.add(("worker", "judge"), open_model(settings.judge))
        if settings.requires_tokens:
            self.model = TokenRequiringModel(self.model)
        self._leases = (
            self.shared.add(("worker", "leases"), WorkerLeases(settings.machines)) if settings.machines else None
        )
        self._status = StatusFile(settings.live) if settings.live else None
        self._cancelled = CancelledFile(settings.live) if settings.live else None
        self._scorer: Scorer | None = None
        self._active = 0
        self._reporting: asyncio.Task[None] | None = None
        # Each agent that blocks needs a thread; the default executor of asyncio has only a few.
        threads = ThreadPoolExecutor(ASYNC_CONCURRENCY, thread_name_prefix="paragent-blocking")
        asyncio.get_running_loop().set_default_executor(threads)

    @property
    def leases(self) -> WorkerLeases:
        """The machine leases.

        Raises:
            UsageError: the run has no pool.
        """
        if self._leases is None:
            raise UsageError(
                f"the environment {self.environment_class.name!r} needs a machine, and this run has no pool"
            )
        return self._leases

    @property
    def scorer_name(self) -> str:
        """The name of the score that counts."""
        return self.settings.metric or self.environment_class.metric

    async def gateway(self) -> Gateway:
        """Return the model gateway of this worker; the first call starts it.

        Raises:
            EnvironmentFailed: it cannot be started.
        """
        from paragent.gateway import Gateway  # most runs do not use it

        return await self.shared.get(("worker", "gateway"), Gateway)

    def scorer(self) -> Scorer | None:
        """Return the scorer that decides; None if only the environment computes that score."""
        name = self.scorer_name
        if self._scorer is None and (":" in name or name in SCORERS.names()):
            self._scorer = self.shared.add(
                ("worker", "scorer"), open_scorer(name, ask=functools.partial(ask_judge, self._judge))
            )
        return self._scorer

    def enter(self, rollout: ActiveRollout) -> None:
        """Register a rollout that starts."""
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._report())
        self._active += 1
        record_usage(started=rollout.clock.started)  # identifies the execution, also if it returns no result
        if self._status:
            self._status.active.add(rollout)
        self._cancel_rollouts([rollout])  # it may have been cancelled before it started

    def leave(self, rollout: ActiveRollout) -> None:
        """Remove a rollout that ended."""
        self._active -= 1
        if self._status:
            self._status.leave(rollout)

    async def _report(self) -> None:
        """Write the status file regularly; close the resources when no rollout has run for a while."""
        idle = 0.0
        try:
            while idle < _IDLE_TIMEOUT:
                if self._status:
                    self._status.write(self.model.pressure())
                    self._cancel_rollouts(self._status.active)
                await asyncio.sleep(_INTERVAL)
                idle = 0.0 if self._active else idle + _INTERVAL
        finally:
            await self._close()

    def _cancel_rollouts(self, active: Iterable[ActiveRollout]) -> None:
        """Cancel those of the rollouts that a user wants to cancel."""
        cancelled = self._cancelled.read() if self._cancelled else ()
        for one in active if cancelled else ():
            if (one.rollout.task.id, one.rollout.attempt) in cancelled:
                one.cancel()

    async def _close(self) -> None:
        _open_resources.pop((id(asyncio.get_running_loop()), self.settings.run), None)
        if self._status:
            self._status.remove()  # first: closing the rest can take many seconds, and this worker does no more work
        await self.shared.close()


async def ask_judge(model: Model, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a judge model's reply, and count its tokens for the rollout, if there is one."""
    sent = [dict(message) for message in messages]
    episode = current_episode.get()
    completion = await (model.complete(sent, []) if episode is None else episode.ask_judge(model, sent))
    if episode is not None and completion.cached:
        episode.count_completion(model.settings.name, completion)
    else:
        count_reply(model.settings.name, completion.usage)
    return str(completion.message.get("content") or "")


_open_resources: dict[tuple[int, str], WorkerResources] = {}
"""By event loop and run."""


def worker_resources(settings: RolloutSettings) -> WorkerResources:
    """Return the resources of this event loop and run; open them if they are not open.

    Raises:
        UsageError: the environment, the model or the scorer cannot be used here.
    """
    key = (id(asyncio.get_running_loop()), settings.run)
    resources = _open_resources.get(key)
    if resources is None:
        resources = _open_resources[key] = WorkerResources(settings)
    return resources
