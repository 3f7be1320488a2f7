"""Every error that paragent raises, ordered by who has to act.

::

    ParagentError
    ├── UsageError                    the caller must change the call
    │   ├── AccessDenied              the peer does not accept our token or certificate, or we not its (also a PermissionError)
    │   ├── AgentStopped              the remote agent was stopped, or its owner or its process is gone (also a LookupError)
    │   ├── ConfigError               a setting is unknown, of the wrong type or out of range
    │   ├── BadData                   a line of a benchmark file cannot be a task
    │   ├── DuplicateTaskId           two tasks of one run have the same id
    │   ├── LimitExceeded             more, larger or deeper than the other side accepts (also a ValueError)
    │   ├── EndpointRefused           the model's endpoint knows the key or the model and says no
    │   ├── RunBusy                   another process is writing into this run's directory
    │   ├── UnknownName               no plug-in (engine, provider, ...) has this name
    │   ├── MissingExtra              the plug-in exists, its optional packages do not
    │   ├── MissingProgram            a program that is no Python package is not on this machine
    │   └── Unserialisable            an object cannot travel to a worker (also a TypeError)
    ├── AgentError                    the agent's own code must change
    │   ├── CallCancelled             the call to a remote agent was cancelled
    │   ├── CallTimedOut              the call did not end by its deadline (also a TimeoutError)
    │   ├── RemoteError               a remote agent raised an error whose class cannot be imported here
    │   ├── ContextFull               the conversation is longer than the model accepts
    │   ├── RequestRejected           the endpoint cannot make sense of what the agent sent
    │   ├── SubAgentError             one sub-agent of a ParallelizableAgent failed
    │   ├── SubAgentsFailed           some did, and nobody was there to aggregate the rest
    │   ├── TaskFailed                raised by TaskResponse.unwrap() for a response without success
    │   ├── ToolsUnsupported          the model's endpoint returns tool calls as text
    │   └── TurnsUsedUp               the agent asked for more turns than --max-turns allows
    └── InfrastructureError           nobody's code is wrong: a process or a machine went away
        ├── EndpointDown              the model's endpoint does not answer, or only with errors
        ├── EngineFailed              the engine cannot go on
        ├── LeaseLost                 the lease has ended: released, expired, or its machine broke
        ├── LeaseTimeout              no machine became free in the time that was asked for (also a TimeoutError)
        ├── MachineFailed             a machine does not boot, does not answer or cannot be reset
        ├── PoolFailed                machines break over and over; the pool gave up
        ├── PoolStopped               the pool is being drained or has ended
        ├── ProtocolError             the peer does not speak our protocol, or breaks it
        ├── ServerLost                a server of agents or of a pool is gone or cannot be reached (also a ConnectionError)
        ├── EnvironmentFailed         what an environment is built on (a browser, a helper process, ...) broke
        ├── StoreFailed               results cannot be kept: the disk is full, the file is damaged
        └── WorkerLost                the worker died and took the attempt with it

    Interrupted (KeyboardInterrupt)   Ctrl-C; carries every response, the cancelled ones too
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "AccessDenied",
    "AgentError",
    "AgentStopped",
    "BadData",
    "CallCancelled",
    "CallTimedOut",
    "ConfigError",
    "ContextFull",
    "DuplicateTaskId",
    "EndpointDown",
    "EndpointRefused",
    "EngineFailed",
    "EnvironmentFailed",
    "InfrastructureError",
    "Interrupted",
    "LeaseLost",
    "LeaseTimeout",
    "LimitExceeded",
    "MachineFailed",
    "MissingExtra",
    "MissingProgram",
    "ParagentError",
    "PoolFailed",
    "PoolStopped",
    "ProtocolError",
    "RemoteError",
    "RequestRejected",
    "RunBusy",
    "ServerLost",
    "StoreFailed",
    "SubAgentError",
    "SubAgentsFailed",
    "TaskFailed",
    "ToolsUnsupported",
    "TurnsUsedUp",
    "UnknownName",
    "Unserialisable",
    "UsageError",
    "WorkerLost",
]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class ParagentError(Exception):
    """The root of the tree: catch this to catch everything that paragent raises on purpose."""

    retryable: bool = False
    """Whether the same attempt, made again, may end differently."""


class UsageError(ParagentError):
    """The call itself is wrong; nothing was started."""


class AccessDenied(UsageError, PermissionError):
    """One side of a connection does not accept what the other shows: a token or a certificate."""


class AgentStopped(UsageError, LookupError):
    """The remote agent is not there any more: it was stopped, its owner dropped it or is gone, or its own process was ended
    because a cancelled call did not end."""


class LimitExceeded(UsageError, ValueError):
    """Something is larger, deeper or more than the other side accepts."""


class ConfigError(UsageError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class BadData(UsageError, ValueError):
    """Lines of a benchmark file that cannot be tasks; `problems` has `(line, reason)` for each."""

    def __init__(self, source: str, problems: Iterable[tuple[int, str]]) -> None:
        self.source, self.problems = source, tuple(problems)
        shown = "".join(f"\n  {source}:{line}: {reason}" for line, reason in self.problems[:10])
        more = f"\n  ... and {len(self.problems) - 10} more" if len(self.problems) > 10 else ""
        super().__init__(
            f"{_counted(len(self.problems), 'line')} cannot be read as a task; nothing was started:{shown}{more}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.source, self.problems))


class EndpointRefused(UsageError):
    """The model's endpoint answers and will go on refusing: a wrong key, an unknown model, no credit."""


class RunBusy(UsageError):
    """Another process is writing into the run's directory."""


class DuplicateTaskId(UsageError, ValueError):
    """Two tasks of one run share an id, so their responses could not be told apart."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"two tasks have the id {task_id!r}; give each its own, or leave `id` out to get a fresh one")
        self.task_id = task_id

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.task_id,))


class UnknownName(UsageError, LookupError):
    """No member of a plug-in family has this name."""

    def __init__(self, family: str, name: str, known: Iterable[str]) -> None:
        self.family, self.name, self.known = family, name, tuple(sorted(known))
        super().__init__(f"there is no {family} called {name!r}; there are: {', '.join(self.known)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.family, self.name, self.known))


class MissingExtra(UsageError, ImportError):
    """A part is known but what it builds on is not installed."""

    def __init__(self, part: str, extra: str, missing: str) -> None:
        self.part, self.extra, self.missing = part, extra, missing
        super().__init__(f"{part} needs {missing}, which is not installed: pip install 'paragent[{extra}]'")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.part, self.extra, self.missing))


class MissingProgram(UsageError):
    """A part needs a program that is not a Python package, and this machine does not have it or does not let it run."""

    def __init__(self, part: str, problem: str, cure: str) -> None:
        self.part, self.problem, self.cure = part, problem, cure
        super().__init__(f"{part}: {problem}; {cure}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.part, self.problem, self.cure))


class Unserialisable(UsageError, TypeError):
    """An object cannot travel between processes; `path` names the part of it that cannot."""

    def __init__(self, what: str, path: str, reason: str) -> None:
        self.what, self.path, self.reason = what, path, reason
        super().__init__(f"{what} cannot be sent to another process because of {path}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.what, self.path, self.reason))


class AgentError(ParagentError):
    """An agent's own code failed."""


class CallCancelled(AgentError):
    """The call to a remote agent was cancelled, by its caller or because the agent was stopped."""


class CallTimedOut(AgentError, TimeoutError):
    """The call to a remote agent did not end by its deadline, and was cancelled for that."""


class RemoteError(AgentError):
    """A remote agent raised an error whose class cannot be imported or rebuilt here; the fields describe it."""

    def __init__(self, error_type: str, message: str, traceback: str = "") -> None:
        self.error_type, self.message, self.traceback = error_type, message, traceback
        super().__init__(f"{error_type}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.error_type, self.message, self.traceback))


class ContextFull(AgentError):
    """The conversation is longer than the model accepts."""


class TurnsUsedUp(AgentError):
    """The agent asked for one more turn than the rollout may have. Unless it is caught, the rollout ends here and is scored."""


class RequestRejected(AgentError):
    """The endpoint cannot make sense of a request, so sending it again is of no use."""


class SubAgentError(AgentError):
    """What an aggregate function finds in the place of the answer of a sub-agent that failed."""

    def __init__(self, agent_name: str, error_type: str, message: str, traceback: str = "") -> None:
        self.agent_name, self.error_type, self.message, self.traceback = agent_name, error_type, message, traceback
        super().__init__(f"sub-agent {agent_name!r} failed: {error_type}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.agent_name, self.error_type, self.message, self.traceback))


class SubAgentsFailed(AgentError):
    """Some sub-agents failed and there is no aggregate function that could make do with the others."""

    def __init__(self, errors: Mapping[str, SubAgentError]) -> None:
        self.errors = dict(errors)
        listed = "; ".join(f"{name}: {error.error_type}: {error.message}" for name, error in self.errors.items())
        super().__init__(
            f"{_counted(len(self.errors), 'sub-agent')} failed: {listed}. "
            "Pass aggregate_func= to go on with the answers of the others"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.errors,))


class TaskFailed(AgentError):
    """A response that was asked for its answer has none; `response` says why."""

    def __init__(self, message: str, response: Any = None) -> None:
        super().__init__(message)
        self.response = response


class ToolsUnsupported(AgentError):
    """The model's endpoint returns tool calls as text; the message says which setting reads them."""


class InfrastructureError(ParagentError):
    """A process, a machine or a connection went away; the same work may succeed elsewhere."""

    retryable = True


class EngineFailed(InfrastructureError):
    """The engine cannot carry any more attempts, for example because no worker process can start.

    `responses` has what was answered before, by task id, where the call that failed would have returned such a dictionary.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.responses: dict[str, Any] = {}


class LeaseLost(InfrastructureError):
    """The lease of a machine has ended: it was released, its heartbeat came late, or its machine broke."""


class LeaseTimeout(InfrastructureError, TimeoutError):
    """No machine of the pool became free in the time that was asked for."""


class MachineFailed(InfrastructureError):
    """A machine does not boot, does not answer, cannot be reset, or its provider's tool failed."""


class PoolFailed(InfrastructureError):
    """Machines of the pool break over and over, so that another one would break as well: the image or the host is bad."""

    retryable = False


class PoolStopped(InfrastructureError):
    """The pool is being drained or has ended, and grants no more machines."""

    retryable = False


class ProtocolError(InfrastructureError):
    """The peer does not speak the protocol of paragent, or breaks it; a different version may run there."""

    retryable = False


class ServerLost(InfrastructureError, ConnectionError):
    """A server of agents or of a pool died, was stopped or cannot be reached; what was asked of it may have happened or not."""


class EndpointDown(InfrastructureError):
    """The model's endpoint does not answer, or only with errors, and was asked often enough."""


class StoreFailed(InfrastructureError):
    """A result cannot be made durable; what was recorded before is safe."""


class EnvironmentFailed(InfrastructureError):
    """What an environment is built on broke: a browser died, a helper process did not start, a machine went away.

    The agent is not to blame; another attempt in a fresh environment may succeed.
    """


class WorkerLost(InfrastructureError):
    """The worker died while it held the attempt."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the run. `responses` has one entry for every task that was accepted, by id, in input order.

    It is empty where responses are handed out one by one: all of them have been, those of the cancelled tasks too.
    """

    def __init__(self, responses: Mapping[str, Any]) -> None:
        self.responses = dict(responses)
        done = sum(1 for response in self.responses.values() if getattr(response, "success", False))
        told = f"{done:,} of {_counted(len(self.responses), 'task')} had succeeded; the others are cancelled"
        super().__init__(f"interrupted: {told if self.responses else 'what was under way is cancelled'}")
