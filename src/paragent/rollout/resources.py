"""What the rollouts of one worker share: the model's client, the environment's resources, the metric, the board.

A station belongs to one event loop. It opens with the first rollout and closes a moment after the last.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import Heartbeat
from paragent._internal.processes import end_own_group
from paragent._internal.threads import start_thread
from paragent.envs import SharedResources, environment_class
from paragent.errors import InfrastructureError
from paragent.models import ModelSettings, open_model
from paragent.models.base import count_reply
from paragent.rollout.leases import MachineDesk, PoolPlace
from paragent.rollout.live_status import Board
from paragent.scorers import SCORERS, open_scorer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.rollout.live_status import UnderWay
    from paragent.scorers import Scorer

__all__ = ["RolloutSettings", "Station", "station_for"]

_IDLE = 2.0
"""Seconds without a rollout after which a station closes; the pause between two rollouts of a run is a few milliseconds."""
_BEAT = 0.5
_DEAF = 120.0
"""Seconds in which the event loop does nothing at all: code blocks it, and nobody's limits are kept any more. Scoring and
tools run elsewhere, so nothing healthy holds it for more than a moment. Time in which the process was frozen does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """Everything the far side needs to play a rollout."""

    run: str
    """Names the run, so that two of them in one process do not share anything."""
    environment: str
    options: dict[str, Any] = field(default_factory=dict)
    model: ModelSettings
    judge: ModelSettings
    agent: str | None = None
    metric: str | None = None
    max_turns: int = 100
    max_retries: int = 3
    timeout: float | None = None
    machines: PoolPlace | None = None
    """Where to lease one, for environments that need it."""
    live: str | None = None
    driver: int = 0
    """The process that drives the run; it is not ended when its event loop is blocked."""


class Station:
    """The shared things, open."""

    def __init__(self, settings: RolloutSettings) -> None:
        self.settings = settings
        self.environment_class = environment_class(settings.environment)
        self.model = open_model(settings.model)
        self._judge = self.model if settings.judge == settings.model else open_model(settings.judge)
        self.shared = SharedResources()
        self.machines = MachineDesk(settings.machines) if settings.machines else None
        self.board = Board(settings.live) if settings.live else None
        self._metrics: dict[str, Scorer] = {}
        self.playing = 0
        self._beating: asyncio.Task[None] | None = None
        self._heart = Heartbeat(_BEAT)
        self._closed = False
        # Agents that block have a thread each; asyncio's own pool has a handful for all of them.
        threads = ThreadPoolExecutor(max(32, settings.model.most_requests), thread_name_prefix="paragent-blocking")
        asyncio.get_running_loop().set_default_executor(threads)

    @property
    def metric_name(self) -> str:
        """What decides."""
        return self.settings.metric or self.environment_class.metric

    def metric(self) -> Scorer | None:
        """Return the metric that decides; None if only the environment knows it."""
        name = self.metric_name
        if name not in self._metrics:
            if ":" not in name and name not in SCORERS.names():
                return None
            self._metrics[name] = open_scorer(name, ask=self._ask)
        return self._metrics[name]

    def enter(self, rollout: UnderWay) -> None:
        """Count a rollout, and show it.

        Raises:
            InfrastructureError: the system has no room for the thread that watches the event loop.
        """
        if self._beating is None:
            self._heart.beat()
            if os.getpid() != self.settings.driver:
                try:
                    start_thread(self._listen, name="paragent-heart")
                except RuntimeError as error:
                    raise InfrastructureError(f"this worker has no room for another thread: {error}") from error
            self._beating = asyncio.create_task(self._beat())
        self.playing += 1
        if self.board:
            self.board.under_way.add(rollout)

    def leave(self, rollout: UnderWay) -> None:
        """Count a rollout as ended."""
        self.playing -= 1
        if self.board:
            self.board.under_way.discard(rollout)

    async def _ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        completion = await self._judge.complete([dict(message) for message in messages], [])
        count_reply(self.settings.judge.name, completion.usage)  # the metric is given the text alone
        return str(completion.message.get("content") or "")

    async def _beat(self) -> None:
        """Show what goes on, and close when nothing has been going on for a while."""
        idle = 0.0
        try:
            while idle < _IDLE:
                self._heart.beat()
                if self.board:
                    self.board.write(self.model.pressure())
                await asyncio.sleep(_BEAT)
                idle = 0.0 if self.playing else idle + _BEAT
        finally:
            await self._close()

    def _listen(self) -> None:
        """End this worker if its event loop is blocked: the run goes on elsewhere, and finds the rollout that did it."""
        while not self._closed:
            time.sleep(_BEAT)
            if self._heart.silence() > _DEAF:
                end_own_group()

    async def _close(self) -> None:
        self._closed = True
        _stations.pop((id(asyncio.get_running_loop()), self.settings.run), None)
        if self.board:
            self.board.clear()
        for metric in self._metrics.values():
            await metric.close()
        await self.shared.close()
        if self.machines:
            await self.machines.close()
        await self.model.close()
        if self._judge is not self.model:
            await self._judge.close()


_stations: dict[tuple[int, str], Station] = {}


def station_for(settings: RolloutSettings) -> Station:
    """Return the station of this event loop and run, opened if there is none.

    Raises:
        UsageError: the environment, the model or the metric cannot be used here.
    """
    key = (id(asyncio.get_running_loop()), settings.run)
    station = _stations.get(key)
    if station is None:
        station = _stations[key] = Station(settings)
    return station
