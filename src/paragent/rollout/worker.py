"""`RolloutWorker`: plays one task, on whatever side it is."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
import traceback
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import here
from paragent._internal.registry import import_object
from paragent._internal.text import well_formed
from paragent._internal.threads import run_to_the_end
from paragent._internal.tracebacks import described
from paragent.agents.base import AgentBase
from paragent.agents.chat import ChatAgent
from paragent.agents.invoke import answer_of, ask, replies_async, require_agent
from paragent.agents.session import AgentResult
from paragent.errors import (
    ConfigError,
    EndpointDown,
    EndpointRefused,
    EnvironmentFailed,
    InfrastructureError,
    LeaseLost,
    LeaseTimeout,
    MachineFailed,
    PoolFailed,
    PoolStopped,
    TurnsUsedUp,
    UsageError,
)
from paragent.models.base import reply_counter
from paragent.rollout.clock import WorkClock
from paragent.rollout.config import RolloutConfig
from paragent.rollout.episode import RolloutEpisode
from paragent.rollout.live_status import UnderWay
from paragent.rollout.resources import RolloutSettings, Station, station_for
from paragent.store import RolloutResult, RolloutStatus
from paragent.store.records import pack_trajectory
from paragent.tasks import TURNS_USED_UP, current_activity

if TYPE_CHECKING:
    from paragent.envs import Environment
    from paragent.rollout.leases import Held, MachineDesk
    from paragent.tasks import BenchmarkTask

__all__ = ["FATAL", "REFUSED", "RolloutWorker", "check_agent"]

REFUSED = "refused"
FATAL = frozenset({REFUSED, "pool"})
"""The kinds of failure after which no rollout of the run can succeed."""
_CLOSE_LIMIT = 30.0
"""Seconds for an environment to close: a browser context or a sandbox takes one."""
_SCORE_LIMIT = 600.0
"""Seconds for scoring one answer, a judge model's retries included."""


class RolloutWorker:
    """Builds an agent and an environment for one task, lets the one play in the other, scores, and cleans up.

    `RolloutWorker(RolloutConfig(mode="math", model="demo")).run(BenchmarkTask("1", "Compute 2/3 + 1/6.", "5/6"))` plays a task by
    itself: without a file of tasks, and without a directory that keeps the result. An environment that needs a machine
    leases it from the pool at `pool_address`.

    `run` and `play` always return a `RolloutResult`: whatever goes wrong is in it, told apart by whose fault it was.

    Raises:
        UsageError: the configuration cannot work here; the message says what to change.
    """

    def __init__(self, settings: RolloutConfig | RolloutSettings) -> None:
        if isinstance(settings, RolloutConfig):
            from paragent.rollout.prepare import play_settings  # not at the top: workers are given what it finds out

            settings = play_settings(settings)
        self.settings = settings

    def run(self, item: BenchmarkTask, attempt: int = 1) -> RolloutResult:
        """Play a task and wait for its end; a notebook may call it, too, although it has an event loop."""
        return run_to_the_end(self.play(item, attempt))

    async def play(self, item: BenchmarkTask, attempt: int = 1) -> RolloutResult:
        """Play a task once."""
        play = RolloutResult(item.id, attempt, RolloutStatus.COMPLETED, worker=here())
        clock = WorkClock(self.settings.timeout)
        shown = UnderWay(item.id, attempt, clock)
        try:
            station = station_for(self.settings)
            station.enter(shown)
        except (UsageError, InfrastructureError) as error:
            _blame(play, error)
            play.ended = time.time()
            return play
        current_activity.set(clock)
        try:
            await self._play(station, item, play, shown)
        finally:
            station.leave(shown)
            play.seconds, play.waited, play.ended = clock.worked, clock.waited, time.time()
        return play

    async def _play(self, station: Station, item: BenchmarkTask, play: RolloutResult, shown: UnderWay) -> None:
        """Build, play, score and close; the machine, if there is one, goes back last."""
        settings, clock = self.settings, shown.clock
        environment: Environment | None = None
        episode: RolloutEpisode | None = None
        held: Held | None = None
        async with contextlib.AsyncExitStack() as machines:
            try:
                environment = station.environment_class(settings.options, shared=station.shared)
                if environment.needs_machine:
                    held = await machines.enter_async_context(_desk(station, environment).lease(f"{here()} {item.id}"))
                model = held.thinking(station.model) if held else station.model
                episode = shown.episode = RolloutEpisode(environment, model, settings.max_turns, settings.max_retries)
                reply_counter.set(episode.count)
                async with held.guarded() if held else contextlib.nullcontext():
                    await self._perform(station, environment, episode, item, play, clock, held)
            except Exception as error:  # noqa: BLE001 - whatever a play ends with is its result
                self._blame(play, await _cause(error, held), clock)
            finally:
                if environment is not None:
                    clock.doing("closing")
                    await _close(environment)
                if episode is not None:
                    _note(play, episode)

    async def _perform(
        self,
        station: Station,
        environment: Environment,
        episode: RolloutEpisode,
        item: BenchmarkTask,
        play: RolloutResult,
        clock: WorkClock,
        held: Held | None,
    ) -> None:
        if held:
            episode.steps.append(held.described())
        async with asyncio.timeout(None) as timeout:
            clock.enforce(timeout)
            clock.doing("opening")
            episode.question = await environment.open(item, held.machine if held else None)
            episode.instructions = environment.instructions
            clock.doing("playing")
            played = await _let_play(_agent(self.settings, environment), episode)
        play.answer = None if played.answer is None else well_formed(str(played.answer))
        play.ending = played.ending
        clock.doing("scoring")
        await _score(station, environment, item, play, episode)

    def _blame(self, play: RolloutResult, error: Exception, clock: WorkClock) -> None:
        limit = self.settings.timeout
        if isinstance(error, TimeoutError) and not isinstance(error, LeaseTimeout) and clock_ran_out(clock, limit):
            play.status, play.kind = RolloutStatus.TIMED_OUT, "time limit"
            play.error = f"worked longer than {limit:g} s"
        else:
            _blame(play, error)


def _desk(station: Station, environment: Environment) -> MachineDesk:
    """Return where machines are leased.

    Raises:
        UsageError: nowhere.
    """
    if station.machines is None:
        raise UsageError(f"the environment {environment.name!r} needs a machine, and this run has no pool")
    return station.machines


async def _cause(error: Exception, held: Held | None) -> Exception:
    """Return what an error comes from: whatever went wrong after the machine was lost went wrong because of that."""
    if held is not None:
        try:
            await held.confirm()
        except (LeaseLost, MachineFailed) as loss:
            return loss
    return error


def clock_ran_out(clock: WorkClock, limit: float | None) -> bool:
    """Return whether a time-out is that of the rollout's own limit."""
    return limit is not None and clock.worked >= limit


def check_agent(found: Any, environment: type[Environment]) -> None:
    """Refuse what `--agent` names if no rollout can use it, before anything is started.

    Raises:
        ConfigError: it cannot be constructed without arguments, or has no way to answer.
    """
    if environment.agent_factory(found) is not None:
        return
    if not isinstance(found, type):
        if not hasattr(found, "run_episode") and not callable(found):
            raise ConfigError(f"--agent names {found!r}, which is neither an agent nor a class of agents")
        return
    try:
        _constructor(found).bind(None, **_constructor_arguments(found))
    except TypeError as error:
        raise ConfigError(
            f"--agent: {found.__name__} cannot be constructed: {error}. Rollouts construct agents with a name at most; "
            "write a subclass that gives the rest"
        ) from None
    own_reply = getattr(found, "reply", None) is not AgentBase.reply if issubclass(found, AgentBase) else False
    if not (
        hasattr(found, "run_episode") or own_reply or ("__call__" in dir(found) and not issubclass(found, AgentBase))
    ):
        raise ConfigError(
            f"--agent: {found.__name__} has neither `run_episode(episode)` nor, as a subclass of AgentBase, a `reply` of its own"
        )


def _constructor(kind: type) -> inspect.Signature:
    """Return the signature of the constructor; that of the class would be its metaclass's."""
    return inspect.signature(kind.__init__)  # type: ignore[misc]  # of this class, not of an instance


def _constructor_arguments(kind: type) -> dict[str, Any]:
    return {name: value for name, value in {"name": "agent"}.items() if name in _constructor(kind).parameters}


def _agent(settings: RolloutSettings, environment: Environment) -> Any:
    """Return a new agent for an environment that is open.

    Raises:
        UsageError: what `--agent` names is no agent.
    """
    if settings.agent is None:
        return ChatAgent()
    try:
        found = import_object(settings.agent)
    except ModuleNotFoundError as error:
        raise UsageError(f"--agent: {error}") from error
    if (factory := environment.agent_factory(found)) is not None:
        return factory(environment, settings.model, settings.max_turns)
    if isinstance(found, type):
        found = found(**_constructor_arguments(found))
    if not hasattr(found, "run_episode"):
        require_agent(found, "--agent")
    return found


async def _let_play(agent: Any, episode: RolloutEpisode) -> AgentResult:
    """Have the agent play: itself if it can, else by one reply to the question."""
    if hasattr(agent, "run_episode"):
        try:
            played = await agent.run_episode(episode)
        except TurnsUsedUp:
            return AgentResult(episode.said_last(), TURNS_USED_UP)
        return played if isinstance(played, AgentResult) else AgentResult(str(played))
    episode.messages.append({"role": "user", "content": episode.question})
    if replies_async(agent):
        reply = await ask(agent, episode.question)
    else:
        reply = await asyncio.to_thread(ask, agent, episode.question)
        if inspect.isawaitable(reply):
            reply = await reply
    answer = str(answer_of(reply))
    episode.messages.append({"role": "assistant", "content": answer})
    return AgentResult(answer)


async def _score(
    station: Station, environment: Environment, item: BenchmarkTask, play: RolloutResult, episode: RolloutEpisode
) -> None:
    """Score the answer by the environment and, if it does not know the metric that decides, by that metric."""
    assert play.answer is not None
    try:
        async with asyncio.timeout(_SCORE_LIMIT):
            own = await environment.score(item, play.answer, episode.messages)
            play.scores = dict(own or {})
            name = station.metric_name
            if name not in play.scores and (metric := station.metric()) is not None:
                score = await metric.score(item, play.answer)
                play.scores[name] = score.value
                if score.note:
                    episode.steps.append({"kind": "score", "metric": name, "note": score.note})
            play.score = play.scores.get(name)
    except TimeoutError as error:
        raise EnvironmentFailed(f"scoring took longer than {_SCORE_LIMIT:g} s") from error


def _blame(play: RolloutResult, error: BaseException) -> None:
    """Note an error by whose it is."""
    play.error = described(error)
    if isinstance(error, EndpointRefused | UsageError):
        play.status, play.kind = RolloutStatus.INFRASTRUCTURE, REFUSED
    elif isinstance(error, EndpointDown):
        play.status, play.kind = RolloutStatus.INFRASTRUCTURE, "endpoint"
    elif isinstance(error, PoolFailed | PoolStopped):
        play.status, play.kind = RolloutStatus.INFRASTRUCTURE, "pool"
    elif isinstance(error, LeaseLost | LeaseTimeout | MachineFailed):
        play.status, play.kind = RolloutStatus.INFRASTRUCTURE, "machine"
    elif isinstance(error, InfrastructureError):
        play.status, play.kind = RolloutStatus.INFRASTRUCTURE, "environment"
    else:
        play.status, play.kind = RolloutStatus.FAILED, type(error).__name__
        play.error += "\n" + "".join(traceback.format_exception(error)[-4:])


def _note(play: RolloutResult, episode: RolloutEpisode) -> None:
    play.turns, play.tool_calls, play.requests = episode.turns, episode.tool_calls, episode.requests
    usage = episode.usage
    play.prompt_tokens = None if usage is None else usage["prompt_tokens"]
    play.completion_tokens = None if usage is None else usage["completion_tokens"]
    for name, amount in episode.judge_usage.items():
        setattr(play, name, amount)
    play.files = episode.files()
    play.trajectory = pack_trajectory(episode.trajectory())


async def _close(environment: Environment) -> None:
    """Close the environment; what goes wrong here is no part of the result."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_LIMIT):
            await asyncio.shield(environment.close())
