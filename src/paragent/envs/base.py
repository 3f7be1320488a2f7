"""Base class of environments: what an agent acts in during one attempt at one task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from paragent.envs.resources import SharedResources
from paragent.envs.tools import Tool, ToolResult, call_tool, option_arguments, tools_of
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
    """Why the task cannot be run; empty if it can."""


class Environment:
    """The environment of one attempt: opened with a task, called with tools, asked for scores, closed.

    ::

        environment = WebEnvironment({"headless": True}, shared=shared)
        try:
            prompt = await environment.open(task, machine)
            ...  # for each tool call of the agent: result = await environment.call(name, arguments)
            scores = await environment.score(task, answer, transcript)
        finally:
            await environment.close()

    The constructor does no I/O. One object serves one attempt; a retry gets a new object. All methods run on one event
    loop that many environments share, so they must not block. The caller may cancel any method at any time and still
    calls `close` afterwards. Resources that the attempts of a worker can share belong in `shared`.

    To write an environment, subclass this class, add `@tool` methods, override `open`, `score` and `close` where needed,
    and set `options_type` if it has options. `paragent.testing.EnvironmentContract` tests it.

    Raises (constructor):
        ConfigError: an option is unknown or has the wrong type.
    """

    name: ClassVar[str] = "environment"
    """The name in messages. `--mode` uses the name under which the environment is registered."""
    instructions: str = ""
    """The system message: what the agent can do here and in which form it must answer."""
    metric: ClassVar[str] = "exact_match"
    """The default of `--metric`, which decides whether an attempt succeeded: a key of the result of `score`, or the name
    of a scorer."""
    own_scores: ClassVar[tuple[str, ...]] = ()
    """Further keys of the result of `score` that are valid for `--metric`."""
    needs_reference: ClassVar[bool] = False
    """Whether scores of its own that are also names of scorers need a reference answer of the task."""
    options_type: ClassVar[Any] = NoOptions
    """A frozen dataclass with the options. Annotations may be everything that pydantic supports."""
    machine_ports: ClassVar[tuple[int, ...]] = ()
    """Ports of the machine to forward in addition to the guest agent's; `machine.ports` has the addresses."""
    needs_desktop: ClassVar[bool] = False
    """Whether the machine needs a screen. Chooses the default image."""
    needs_internet: ClassVar[bool] = False
    """Whether the machine needs the Internet. If not, it has no network, if the provider supports that."""
    one_at_a_time: ClassVar[bool] = False
    """Whether the tool calls of one turn run one after the other, in order. Otherwise they run concurrently."""
    images_shown: int = 3
    """Number of recent images in each request to the model. Earlier images are only stored."""
    call_limit: ClassVar[float] = 120.0
    """Seconds after which a tool call is stopped and reported to the agent as failed. This is the last resort; tools
    should have shorter limits of their own."""

    def __init__(self, options: Mapping[str, Any] | None = None, *, shared: SharedResources | None = None) -> None:
        self.options = self.read_options(options or {})
        """The options as `read_options` returned them."""
        self.shared = SharedResources() if shared is None else shared
        """Resources that all environments of a worker share."""
        self._owns_shared = shared is None
        self.task: BenchmarkTask | None = None
        """The task of the rollout; None before `open`."""
        self.machine: Any = None
        """The leased machine, if `needs_machine` is set; None before `open`."""
        self.first_images: tuple[bytes, ...] = ()
        """Images (PNG) of the first user message; set by `open`."""
        self.first_kept: tuple[bytes, ...] = ()
        """Images of the initial state that the agent is not shown; set by `open`."""
        self.files: dict[str, bytes] = {}
        """Files to store beside the trajectory, by name; complete when `close` has returned."""
        self.score_note = ""
        """The reason for the last result of `score`, for people; may be empty. It is stored; the agent is not shown it."""
        self._tools = tools_of(self)
        self._turn = asyncio.Lock()
        """Serialises tool calls if `one_at_a_time`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @classmethod
    def option_names(cls) -> list[str]:
        """Return the names of the options."""
        return option_arguments(cls.options_type).names

    @classmethod
    def read_options(cls, given: Mapping[str, Any]) -> Any:
        """Return `given` as an `options_type`. None means the default; numbers and booleans may be given as text.

        Raises:
            ConfigError: an option is unknown or has the wrong type.
        """
        arguments = option_arguments(cls.options_type)
        chosen = {name: value for name, value in given.items() if value is not None or name not in arguments.names}
        try:
            values = arguments.validate(chosen)
        except ValueError as error:
            raise ConfigError(f"the environment {cls.name!r}: the option {error}") from None
        return cls.options_type(**values)

    @property
    def needs_machine(self) -> bool:
        """Whether `open` needs a leased machine; fixed once the object is constructed."""
        return False

    async def check(self) -> None:
        """Check, before a run, whether this environment can work here with these options. May take seconds.

        Raises:
            UsageError: it cannot. The message says what to do: install a program or an extra, name a file, set a key.
        """

    @classmethod
    def load_tasks(cls, path: Path, document: Any) -> Iterator[LoadedTask] | None:  # noqa: ARG003 - for subclasses
        """Return the tasks of a dataset in a format of this environment's own, read as they are iterated over.

        Every environment reads JSON lists, `{"items": [...]}`, single tasks and JSON lines. Override this method for
        another format, such as an index that names the files of the tasks.

        Args:
            path: the dataset's file.
            document: the parsed JSON of the whole file, or of its first line. Return None unless it has that format;
                read no other file to decide that.
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

    def missing_requirements(self, task: BenchmarkTask) -> list[str]:
        """Return what a task needs and this environment lacks, as texts for the user; empty if the task can run."""
        return []

    def tools(self) -> list[Tool]:
        """Return the tools that the agent may call."""
        return list(self._tools.values())

    def calls_in(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the tool calls (name and arguments) in the text of a message, for models without tool support."""
        return []

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        """Prepare the environment for a task and return the first user message.

        Args:
            task: the task. Its `answer` and hidden tests are for `score` only.
            machine: a leased machine if `needs_machine`. It is borrowed: do not close it.

        Raises:
            InfrastructureError: a failure that a retry may avoid.
            UsageError: the environment cannot work here; a retry would not help.
        """
        self.task, self.machine = task, machine
        return task.question

    async def observation(self) -> dict[str, Any]:
        """Return the raw current state, for agents that observe by themselves; empty if there is none.

        Raises:
            InfrastructureError: the environment failed.
        """
        return {}

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Run a tool and return its result for the agent.

        An unknown tool, malformed or invalid arguments, a call over its time limit and `ToolFailed` are results with
        `error` set, not exceptions.

        Args:
            name: the tool.
            arguments: as the model sent them: a JSON text or a parsed object.

        Raises:
            InfrastructureError: the environment failed.
        """
        tool = self._tools.get(name)
        if tool is None:
            return ToolResult(f"there is no tool {name!r}; there are: {', '.join(self._tools) or 'none'}", error=True)
        async with self._turn if self.one_at_a_time else contextlib.nullcontext():
            return await call_tool(tool, arguments, self.call_limit)

    async def score(
        self, task: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        """Return the environment's own scores of a final answer, each from 0 to 1; None if it has none.

        It may be called without `open`, to score a stored answer again.

        Args:
            task: the task.
            answer: the agent's final message.
            transcript: the messages of the attempt in chat format, including tool calls and results.

        Raises:
            InfrastructureError: scoring failed. The answer counts neither as right nor as wrong.
        """
        return None

    async def close(self) -> None:
        """Release everything that this attempt acquired. Idempotent; also called after `open` failed."""
        if self._owns_shared:
            await self.shared.close()


AgentFactory = Callable[[Environment, "ModelSettings", int], Any]
"""Returns a new agent with `run_episode(episode)`, given an open environment, the model's settings and the maximum of turns."""
