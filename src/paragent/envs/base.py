"""The contract of environments: what an agent acts in during one attempt at one item."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_type_hints

from paragent.envs.resources import SharedResources
from paragent.envs.schema import convert
from paragent.envs.tools import Tool, ToolFailed, ToolResult, tools_of
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from paragent.models import ModelSettings
    from paragent.tasks import BenchmarkTask

__all__ = ["AgentFactory", "Environment", "LoadedTask", "NoOptions"]


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of an environment that has none."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """One task of a dataset in an environment's own format, or the reason why it cannot be read."""

    task: Any = None
    """The task as parsed JSON; None if there is a problem."""
    problem: str = ""


class Environment:
    """One attempt's world: told the item, called with tools, asked for a score, closed.

    ::

        environment = WebEnvironment({"headless": True}, shared=shared)
        try:
            prompt = await environment.open(item, machine)
            ...  # the agent talks; each tool call of a turn: result = await environment.call(name, arguments)
            scores = await environment.score(item, answer, transcript)
        finally:
            await environment.close()

    The constructor does no I/O; one object serves one attempt, and a retry gets a new one. All methods run on one event
    loop, which many environments share, so none may block it. Who calls may cancel any method at any moment; `close` is
    then still called. What several attempts of a worker can share is kept in `shared`.

    To write one: a subclass with `@tool` methods (see `paragent.envs.tools`) and, where needed, `open`, `score` and
    `close`; an `options_type` if it has settings. `paragent.testing.EnvironmentContract` checks it.

    Raises (constructor):
        ConfigError: an option is unknown or has the wrong type.
    """

    name: ClassVar[str] = "environment"
    instructions: str = ""
    """The system message: what this world is and how to answer in it."""
    metric: ClassVar[str] = "exact_match"
    """What decides by default: a key of what `score` returns, or the name of a metric (`paragent.scorers.SCORERS`)."""
    own_scores: ClassVar[tuple[str, ...]] = ()
    """Other keys of what `score` returns that `--metric` may choose to decide by."""
    options_type: ClassVar[type[Any]] = NoOptions
    """A frozen dataclass; its fields are the options, with the annotations that `paragent.envs.schema` understands."""
    machine_ports: ClassVar[tuple[int, ...]] = ()
    """Ports of a machine that are reached besides that of its agent; `machine.ports` says where."""
    needs_desktop: ClassVar[bool] = False
    """Whether its machine must have a screen, which decides what is started where the user names no image."""
    needs_internet: ClassVar[bool] = False
    """Whether its machine must reach the Internet; else a machine that can be cut off reaches nothing."""
    one_at_a_time: ClassVar[bool] = False
    """Whether the tools of one turn must wait for each other, in the order of the calls; else they run at the same time."""
    images_shown: int = 3
    """How many of the last pictures the model is sent; earlier ones are only kept."""
    call_limit: ClassVar[float] = 120.0
    """Seconds after which a tool call is stopped and the agent told so. Tools have tighter limits of their own; this is
    the net below them."""

    def __init__(self, options: Mapping[str, Any] | None = None, *, shared: SharedResources | None = None) -> None:
        self.options = self.read_options(options or {})
        self._own_shared = SharedResources() if shared is None else None
        self.shared = shared or self._own_shared or SharedResources()
        self.item: BenchmarkTask | None = None
        self.machine: Any = None
        self.first_images: tuple[bytes, ...] = ()
        """Pictures (PNG) that belong to the first user message; set by `open`."""
        self.first_kept: tuple[bytes, ...] = ()
        """Pictures of the beginning that the agent is not shown; set by `open`."""
        self.files: dict[str, bytes] = {}
        """What is to be kept beside the trajectory, by the name of a file; complete when `close` has returned."""
        self._tools = tools_of(self)
        self._turn = asyncio.Lock()
        """Protects the state of an environment that is `one_at_a_time`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @classmethod
    def option_names(cls) -> list[str]:
        """Return the names of the options, for those who pick them out of a larger set of flags."""
        return [one.name for one in fields(cls.options_type)]

    @classmethod
    def read_options(cls, given: Mapping[str, Any]) -> Any:
        """Return `given` as an `options_type`; None stands for the default, texts are converted.

        Raises:
            ConfigError: an option is unknown or has the wrong type.
        """
        known = get_type_hints(cls.options_type, include_extras=True)
        values = {}
        for name, value in given.items():
            if name not in cls.option_names():
                raise ConfigError(
                    f"the environment {cls.name!r} has no option {name!r}; it has: {', '.join(known) or 'none'}"
                )
            if value is None:
                continue
            try:
                values[name] = convert(value, known[name])
            except ValueError as error:
                raise ConfigError(f"the option {name!r} of the environment {cls.name!r} {error}") from None
        return cls.options_type(**values)

    @classmethod
    def load_tasks(cls, path: Path, document: Any) -> Iterator[LoadedTask] | None:  # noqa: ARG003 - for subclasses
        """Return the tasks of a dataset in a format of this environment's own, read as they are iterated over.

        Every environment reads JSON lists, `{"items": [...]}`, single tasks and JSON lines. Override this method for
        another format, such as an index that names the files of the tasks.

        Args:
            path: the dataset's file.
            document: the parsed JSON of the whole file, or of its first line. Return None unless it has that format;
                deciding reads no other file.
        """
        return None

    @classmethod
    def agent_factory(cls, agent: Any) -> AgentFactory | None:  # noqa: ARG003 - for subclasses
        """Return a factory that wraps agents written for another interface; None if `agent` does not have that interface.

        Rollouts call it with what `--agent` names: first to check it before the run, then once for each rollout. Agents
        with `run_episode(episode)`, subclasses of `AgentBase` and callables need no factory.

        Raises:
            UsageError: the agent has the interface, but cannot be used.
        """
        return None

    @property
    def needs_machine(self) -> bool:
        """Whether `open` must be handed a leased machine; known as soon as the object is constructed."""
        return False

    async def check(self) -> None:
        """Find out, before a run, whether this environment can work here with these options; may take seconds, once.

        Raises:
            UsageError: it cannot; the message has the cure (a missing program, extra, file, key).
        """

    def lacking(self, item: BenchmarkTask) -> list[str]:
        """Return what an item needs and this environment does not have, in words for the user; empty if it can be played."""
        return []

    def tools(self) -> list[Tool]:
        """Return what the agent may call."""
        return list(self._tools.values())

    def calls_in(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the tool calls, by name and arguments, that a message makes in its text, as models without tools do."""
        return []

    async def open(self, item: BenchmarkTask, machine: Any = None) -> str:
        """Get ready for an item and return the first user message.

        Args:
            item: what is asked; its `answer` and hidden tests are for `score` alone.
            machine: a leased machine if `needs_machine`. It is borrowed: never closed here.

        Raises:
            InfrastructureError: something broke that is nobody's fault; a fresh attempt may succeed.
            UsageError: it can never work here.
        """
        self.item, self.machine = item, machine
        return item.question

    async def observation(self) -> dict[str, Any]:
        """Return what there is to see now, raw, for agents that look by themselves; empty if there is nothing of the kind.

        Raises:
            InfrastructureError: the environment itself broke.
        """
        return {}

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Run a tool and return what the agent is told.

        A tool that does not exist, malformed or invalid arguments, a call that takes too long and a tool's own
        `ToolFailed` are results with `error` set, not exceptions.

        Args:
            name: the tool.
            arguments: as the model sent them: a JSON text, or an object already parsed.

        Raises:
            InfrastructureError: the environment itself broke.
        """
        tool = self._tools.get(name)
        if tool is None:
            return ToolResult(f"there is no tool {name!r}; there are: {', '.join(self._tools) or 'none'}", error=True)
        try:
            bound = tool.bind(arguments)
            if not self.one_at_a_time:
                return await self._limited(tool, bound)
            async with self._turn:
                return await self._limited(tool, bound)
        except ToolFailed as error:
            return ToolResult(str(error), error=True)

    async def _limited(self, tool: Tool, bound: dict[str, Any]) -> ToolResult:
        limit = asyncio.timeout(self.call_limit)
        try:
            async with limit:
                result = await tool.function(**bound)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolFailed(f"{tool.name} was stopped: it took longer than {self.call_limit:g} s") from None
        return result if isinstance(result, ToolResult) else ToolResult(result)

    async def score(
        self, item: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        """Return this environment's own scores of a final answer, each from 0 to 1; None if it has no opinion.

        It may be called without `open`, to score a stored answer again.

        Args:
            item: what was asked.
            answer: the agent's final message.
            transcript: the messages of the attempt in the chat format, tool calls and results among them.

        Raises:
            InfrastructureError: scoring broke; the answer is neither right nor wrong.
        """
        return None

    async def close(self) -> None:
        """Give back everything this attempt took; may be called twice, and after an `open` that failed."""
        if self._own_shared is not None:
            await self._own_shared.close()


AgentFactory = Callable[[Environment, "ModelSettings", int], Any]
"""Returns a new agent with `run_episode(episode)`, given an open environment, the model's settings and the maximum of turns."""
