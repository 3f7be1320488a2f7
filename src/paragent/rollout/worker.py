"""`RolloutWorker`: executes one rollout, in a worker process or in the caller's."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import here
from paragent._internal.registry import import_object
from paragent._internal.text import well_formed
from paragent._internal.threads import run_to_the_end
from paragent.agents.base import AgentBase, require_agent
from paragent.agents.chat import AgentResult, ChatAgent
from paragent.errors import (
    ConfigError,
    EndpointRefused,
    InfrastructureError,
    LeaseLost,
    MachineFailed,
    TurnsUsedUp,
    UsageError,
)
from paragent.execution import current_activity, limit_itself, waiting
from paragent.mcp import McpTools
from paragent.models.base import reply_counter
from paragent.rollout.blame import (
    CANCELLED,
    Circumstances,
    RolloutFailureKind,
    Stage,
    Verdict,
    blame,
    blame_blocked_loop,
)
from paragent.rollout.config import RolloutConfig
from paragent.rollout.episode import CLOSE_TIMEOUT, OPEN_TIMEOUT, RolloutEpisode, current_episode
from paragent.rollout.function_agent import call_agent, environment_variables, gateway_arguments, uses_gateway
from paragent.rollout.gateway_access import described_task, gateway_address, gateway_variables
from paragent.rollout.live_status import ActiveRollout
from paragent.rollout.resources import RolloutSettings, WorkerResources, worker_resources
from paragent.rollout.scoring import SCORE_PAUSE, SCORE_TIMEOUT, SCORE_TRIES, score_answer
from paragent.rollout.work_clock import WorkClock
from paragent.store import PendingRollout, RolloutActivity, RolloutResult, RolloutStatus
from paragent.store.records import pack_trajectory
from paragent.tasks import ANSWER_CUT, ANSWERED, CONTEXT_FULL, TURNS_USED_UP

if TYPE_CHECKING:
    from paragent.envs import Environment
    from paragent.gateway import GatewayAddress
    from paragent.rollout.machines import LeasedMachine
    from paragent.rollout.program import ProgramAgent
    from paragent.rollout.program_settings import ProgramSettings
    from paragent.tasks import BenchmarkTask

__all__ = ["RolloutWorker", "check_agent"]


class RolloutWorker:
    """Executes rollouts: builds the agent and the environment, runs the agent, scores the answer and cleans up.

    `RolloutWorker(RolloutConfig(mode="math", model="demo")).run(BenchmarkTask("1", "Compute 2/3 + 1/6.", "5/6"))` executes one
    task without a dataset and without a run directory. An environment that needs a machine leases it from the pool at
    `pool_address`.

    Rollouts do not raise: every failure is a `RolloutResult` whose status and kind tell the cause.

    Raises:
        UsageError: the configuration cannot be used here; the message says what to change.
    """

    def __init__(self, settings: RolloutConfig | RolloutSettings) -> None:
        if isinstance(settings, RolloutConfig):
            from paragent.rollout.prepare import rollout_settings_of  # workers receive the result and need not load it

            settings = rollout_settings_of(settings)
        self.settings = settings
        """The settings as the worker process gets them."""

    def run(self, task: BenchmarkTask, attempt: int = 1) -> RolloutResult:
        """Execute a rollout and wait for it. May be called while an event loop is running, as in a notebook."""
        return run_to_the_end(self(PendingRollout(task, attempt)))

    async def __call__(self, rollout: PendingRollout) -> RolloutResult:
        """Execute a rollout once."""
        result = RolloutResult(rollout.task.id, rollout.attempt, RolloutStatus.COMPLETED, worker=here())
        result.started = time.time()
        try:
            resources = worker_resources(self.settings)
            # After the resources: the first rollout opens them for all, and that is not its working time.
            active = ActiveRollout(rollout, WorkClock())
            resources.enter(active)
        except (UsageError, InfrastructureError) as error:
            blame(error, Circumstances(stage=Stage.BUILDING)).set_on(result)
            result.ended = time.time()
            return result
        current_activity.set(active.clock)
        try:
            await _Execution(resources, active, result).run()
        finally:
            resources.leave(active)
            _copy_times(result, active.clock)
        return result


class _Execution:
    """One execution of a rollout: its environment, its machine and its episode."""

    def __init__(self, resources: WorkerResources, active: ActiveRollout, result: RolloutResult) -> None:
        self._settings, self._resources = resources.settings, resources
        self._active, self._result = active, result
        self._task, self._clock = active.rollout.task, active.clock
        self._environment: Environment | None = None
        self._machine: LeasedMachine | None = None
        self._stage = Stage.BUILDING

    async def run(self) -> None:
        """Build the environment, run the agent, score the answer and clean up; the machine is released last."""
        async with contextlib.AsyncExitStack() as leases:
            try:
                if self._settings.supervised:
                    self._clock.publish(limit_itself(self))
                environment, episode = await self._build(leases)
                async with self._machine.watched() if self._machine else contextlib.nullcontext():
                    await self._act(environment, episode, leases)
                    await self._score(environment, episode)
            except asyncio.CancelledError:
                if not self._active.take_cancellation():
                    raise
                CANCELLED.set_on(self._result)
            except Exception as error:  # noqa: BLE001 - every failure is a result
                if self._active.take_cancellation():  # code of the agent turned the cancellation into another error
                    CANCELLED.set_on(self._result)
                else:
                    self._active.ending = True
                    (await self._blame(error)).set_on(self._result)
            finally:
                self._active.ending = True
                await self._finish()

    def excuse(self, seconds: float) -> None:
        """Do not count the last seconds, in which another rollout blocked the event loop."""
        self._clock.excuse(seconds)

    def stop(self, stack: str) -> RolloutResult:
        """Return the result of this rollout, whose code blocks the event loop. Called from another thread.

        Args:
            stack: where the code is.
        """
        result = copy(self._result)  # the code may continue, and change the original
        of_agent = self._clock.doing_now in (RolloutActivity.WORKING, RolloutActivity.GENERATING)
        limit = self._settings.timeout if self._clock.is_late else None
        blame_blocked_loop(self._stage, limit, stack, of_agent=of_agent).set_on(result)
        if (episode := self._active.episode) is not None:
            _copy_episode(result, episode)
        _copy_times(result, self._clock)
        return result

    async def _build(self, leases: contextlib.AsyncExitStack) -> tuple[Environment, RolloutEpisode]:
        settings, resources = self._settings, self._resources
        environment = resources.environment_class(settings.options, shared=resources.shared)
        self._environment = environment
        model = resources.model
        if environment.needs_machine:
            leasing = resources.leases.lease(f"{here()} {self._active.rollout.label}")
            self._machine = await leases.enter_async_context(leasing)
            self._active.machine = self._result.machine = self._machine.machine.id
            model = self._machine.wrap(model)
        attempt, retries = self._active.rollout.attempt, settings.model.max_retries
        episode = RolloutEpisode(environment, model, settings.max_turns, retries, self._clock, attempt)
        self._active.episode = episode
        reply_counter.set(episode.count)
        current_episode.set(episode)
        if self._machine:
            episode.steps.append(self._machine.as_step())
        return environment, episode

    async def _act(self, environment: Environment, episode: RolloutEpisode, leases: contextlib.AsyncExitStack) -> None:
        self._clock.enter(RolloutActivity.OPENING)
        async with self._clock.limited(OPEN_TIMEOUT):
            await self._open(environment, episode, leases)
        self._clock.enter(RolloutActivity.WORKING)
        async with self._clock.limited(self._settings.timeout):
            answer = await self._run_agent(environment, episode)
        self._result.answer = None if answer.answer is None else well_formed(str(answer.answer))
        self._result.ending = answer.ending

    async def _open(self, environment: Environment, episode: RolloutEpisode, leases: contextlib.AsyncExitStack) -> None:
        """Open the environment and the MCP servers, and import the agent. This is not the agent's work."""
        self._stage = Stage.OPENING
        episode.question = await environment.open(self._task, self._machine.machine if self._machine else None)
        self._stage = Stage.BUILDING
        episode.instructions = environment.instructions
        episode.add_tools(environment)
        if self._settings.mcp is not None:
            taken = [tool.name for tool in environment.tools()]
            episode.add_tools(await leases.enter_async_context(McpTools.opened(self._settings.mcp, taken)))
        if self._settings.agent is not None and not self._settings.isolated:  # it may read variables that are set later
            with contextlib.suppress(Exception):  # reported when the agent is constructed
                import_object(self._settings.agent)

    async def _score(self, environment: Environment, episode: RolloutEpisode) -> None:
        """Score the answer with the environment and, if it does not compute the score that counts, with the scorer.

        A scorer that fails is asked again: the answer and the machine are still there, and most failures pass.
        """
        self._clock.enter(RolloutActivity.SCORING)
        self._stage = Stage.SCORING
        for trial in range(1, SCORE_TRIES + 1):
            try:
                async with self._clock.limited(SCORE_TIMEOUT):
                    await self._score_once(environment, episode)
            except Exception as error:
                verdict = await self._blame(error)
                if verdict.kind != RolloutFailureKind.SCORING or trial == SCORE_TRIES:
                    raise
            else:
                return
            with waiting("scoring again", SCORE_PAUSE * trial):
                await asyncio.sleep(SCORE_PAUSE * trial)

    async def _run_agent(self, environment: Environment, episode: RolloutEpisode) -> AgentResult:
        """Run the agent and return its result.

        Raises:
            Exception: the agent failed; or, if the last call of the model failed before, that failure. If the environment failed
                in a call of the gateway, or the endpoint in a way that spoils every answer, that failure, even if the agent has
                an answer.
        """
        try:
            async with contextlib.AsyncExitStack() as stack:
                result = await self._run_new_agent(environment, episode, stack)
            if (failure := episode.tool_failure or self._spoiling_failure(episode)) is not None:
                raise failure
            return replace(result, ending=episode.ended) if episode.ended else result
        except Exception as error:
            failure = episode.tool_failure or _endpoint_failure(episode)
            if failure is not None:
                if failure is error:
                    raise
                raise failure from error
            if episode.refusal is None:
                raise
            ending = TURNS_USED_UP if isinstance(episode.refusal, TurnsUsedUp) else CONTEXT_FULL
            return AgentResult(episode.last_answer(), ending)

    def _spoiling_failure(self, episode: RolloutEpisode) -> Exception | None:
        """Return the failure of the last call of the model that makes an answer worthless: in training, where its reward would
        not be earned, each failure of the endpoint; otherwise one that no rollout of the run can avoid, or that left the agent
        without any reply."""
        failure = _endpoint_failure(episode)
        if failure is None or self._settings.requires_tokens:
            return failure
        return failure if not episode.turns or self._verdict_on(failure).is_fatal else None

    async def _run_new_agent(
        self, environment: Environment, episode: RolloutEpisode, stack: contextlib.AsyncExitStack
    ) -> AgentResult:
        """Run the agent: with `run_episode` if it has that method, else by one reply to the question."""
        self._stage = Stage.CONSTRUCTING
        settings, name = self._settings, episode.model_name
        task = described_task(self._task, episode, settings.agent_metadata)
        address = None
        if settings.program is not None:
            address = await stack.enter_async_context(gateway_address(self._resources, episode))
            program = await self._new_program(settings.program, task, address)
            self._stage = Stage.ACTING
            return await program.run_episode(episode)
        if settings.isolated and settings.agent is not None:
            address = await stack.enter_async_context(gateway_address(self._resources, episode))
            stack.enter_context(environment_variables(gateway_variables(address, name)))
        agent = _new_agent(settings, environment)
        self._stage = Stage.ACTING
        if hasattr(agent, "run_episode"):
            return await _run_episode(agent, episode)
        if address is None and uses_gateway(agent):
            address = await stack.enter_async_context(gateway_address(self._resources, episode))
        arguments = None if address is None else gateway_arguments(address, name, task)
        try:
            answer = await call_agent(agent, episode.question, arguments)
        finally:
            silent = not episode.messages  # it did not call the gateway
            if silent:
                episode.messages.append({"role": "user", "content": episode.question})
        if silent:
            episode.messages.append({"role": "assistant", "content": answer})
        return AgentResult(answer)

    async def _new_program(
        self, settings: ProgramSettings, task: dict[str, Any], address: GatewayAddress
    ) -> ProgramAgent:
        from paragent.rollout.program import ProgramAgent  # most runs have no program

        gateway = await self._resources.gateway()
        machine = self._machine.machine if self._machine else None
        return ProgramAgent(settings, task, address, gateway.unix_path(address), machine)

    async def _score_once(self, environment: Environment, episode: RolloutEpisode) -> None:
        result, name = self._result, self._resources.scorer_name
        assert result.answer is not None
        scored = await score_answer(self._resources, environment, self._task, result.answer, episode.messages)
        result.score, result.scores = scored.value, scored.scores
        if scored.note:
            episode.steps.append({"kind": "score", "metric": name, "note": scored.note})

    async def _blame(self, error: Exception) -> Verdict:
        """Return whose failure an error is. If the machine is lost, that is the cause, whatever the code made of it."""
        if self._machine is not None:
            try:
                await self._machine.confirm()
            except (LeaseLost, MachineFailed) as loss:
                return self._verdict_on(loss)
        return self._verdict_on(error)

    def _verdict_on(self, error: Exception) -> Verdict:
        episode = self._active.episode
        limits = {Stage.SCORING: SCORE_TIMEOUT, Stage.OPENING: OPEN_TIMEOUT, Stage.BUILDING: OPEN_TIMEOUT}
        circumstances = Circumstances(
            stage=self._stage,
            limit=limits.get(self._stage, self._settings.timeout),
            expired=self._clock.expired,
            unanswered=episode.unanswered if episode else 0.0,
            endpoint_answered=self._resources.model.has_answered,
            call_failure=episode.call_failure if episode else None,
        )
        return blame(error, circumstances)

    async def _finish(self) -> None:
        """Close the environment and copy usage, files and trajectory into the result."""
        if self._environment is not None:
            self._clock.enter(RolloutActivity.CLOSING)
            with contextlib.suppress(Exception):  # an error here does not change the result
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await asyncio.shield(self._environment.close())
        if (episode := self._active.episode) is not None:
            _copy_episode(self._result, episode)


def _copy_times(result: RolloutResult, clock: WorkClock) -> None:
    result.seconds, result.waited, result.ended = clock.worked, clock.waited, time.time()
    result.started, result.activity = clock.started, clock.packed_activity()


def _endpoint_failure(episode: RolloutEpisode) -> Exception | None:
    """Return the failure of the last call of the model, if the endpoint caused it and not the content of the request."""
    failure = episode.call_failure
    return failure if isinstance(failure, InfrastructureError | EndpointRefused) else None


def _copy_episode(result: RolloutResult, episode: RolloutEpisode) -> None:
    result.turns, result.tool_calls, result.requests = episode.turns, episode.tool_calls, episode.requests
    result.cached_replies = episode.cached_replies
    if result.ending == ANSWERED and episode.reply_was_cut:
        result.ending = ANSWER_CUT
    usage = episode.usage
    result.prompt_tokens = None if usage is None else usage["prompt_tokens"]
    result.completion_tokens = None if usage is None else usage["completion_tokens"]
    result.cached_tokens = None if usage is None else usage.get("cached_tokens")
    result.reasoning_tokens = None if usage is None else usage.get("reasoning_tokens")
    for name, amount in episode.judge_usage.items():
        setattr(result, name, amount)
    result.files = episode.files()
    result.trajectory = pack_trajectory(episode.trajectory())


async def _run_episode(agent: Any, episode: RolloutEpisode) -> AgentResult:
    """Run an agent that controls the rollout."""
    try:
        returned = await agent.run_episode(episode)
    except TurnsUsedUp:
        return AgentResult(episode.last_answer(), TURNS_USED_UP)
    return returned if isinstance(returned, AgentResult) else AgentResult(str(returned))


def check_agent(found: Any, environment: type[Environment]) -> None:
    """Check, before the run starts, that rollouts can use the object that `--agent` names.

    Raises:
        ConfigError: it cannot be constructed without arguments, or has no method to answer.
    """
    if environment.agent_factory(found) is not None:
        return
    if not isinstance(found, type):
        if not hasattr(found, "run_episode") and not callable(found):
            raise ConfigError(
                f"--agent names {found!r}, which is neither an agent nor an agent class; name a class or a function"
            )
        uses_gateway(found)
        return
    try:
        _constructor(found).bind(None, **_constructor_arguments(found))
    except TypeError as error:
        raise ConfigError(
            f"--agent: {found.__name__} cannot be constructed: {error}. Rollouts pass at most a name; write a subclass that "
            "sets the other arguments"
        ) from None
    own_reply = getattr(found, "reply", None) is not AgentBase.reply if issubclass(found, AgentBase) else False
    callable_class = "__call__" in dir(found) and not issubclass(found, AgentBase)
    if not (hasattr(found, "run_episode") or own_reply or callable_class):
        raise ConfigError(
            f"--agent: {found.__name__} needs a method `run_episode(episode)` or, as a subclass of AgentBase, a `reply`"
        )


def _constructor(kind: type) -> inspect.Signature:
    """Return the signature of `__init__`; the signature of the class would be that of its metaclass."""
    return inspect.signature(kind.__init__)  # type: ignore[misc]  # of this class, not of an instance


def _constructor_arguments(kind: type) -> dict[str, Any]:
    return {name: value for name, value in {"name": "agent"}.items() if name in _constructor(kind).parameters}


def _new_agent(settings: RolloutSettings, environment: Environment) -> Any:
    """Return a new agent for an open environment.

    Raises:
        UsageError: `--agent` does not name an agent.
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
