"""A unit of work: an agent and what it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paragent._ids import new_id
from paragent._numbers import seconds, whole
from paragent.errors import ConfigError

__all__ = ["Task"]


@dataclass(slots=True)
class Task:
    """An input and the agent that shall reply to it.

    Every attempt gets a copy of the agent as it was when the run began, so tasks that share an agent object do not see
    each other's changes to it.

    Raises:
        ConfigError: the id is no string, or a limit is out of range.
    """

    input: Any = None
    """What the agent is given. An `AgentBase` receives it as `Msg.content` (a `Msg` is handed over as it is), a plain
    function as it is."""
    agent: Any = None
    """An `AgentBase`, or any function of one argument, sync or async."""
    id: str = field(default_factory=lambda: new_id("task"))
    """Unique within a run; the key of the response."""
    name: str = ""
    """For people: shown in logs and displays where there is one, else the id is."""
    timeout: float | None = None
    """Seconds of work before the attempt is stopped, counted from its start in a worker; None: the run's limit."""
    max_retries: int | None = None
    """As `RunConfig.max_retries`, for this task; None: the run's."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Comes back on the response; neither interpreted nor sent to workers."""

    def __post_init__(self) -> None:
        if type(self.id) is not str or not self.id:
            raise ConfigError(f"a task's id must be a non-empty string, not {self.id!r}")
        if self.timeout is not None:
            seconds(self.timeout, f"task {self.id!r}: timeout", none=True)
        if self.max_retries is not None:
            whole(self.max_retries, f"task {self.id!r}: max_retries", least=0, none=True)
