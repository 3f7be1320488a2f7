"""All errors that paragent raises, by who has to act.

::

    ParagentError
    ├── UsageError                    the caller must change the call
    │   ├── AccessDenied              a token, a certificate or what a client sends is not accepted (also a PermissionError)
    │   ├── AgentStopped              the remote agent was stopped, or its owner or process has ended (also a LookupError)
    │   ├── ConfigError               a setting is unknown, of the wrong type or out of range
    │   ├── BadData                   a line of a benchmark file cannot be read as a task
    │   ├── DuplicateTaskId           two tasks of one run have the same id
    │   ├── LimitExceeded             more, larger or deeper than the receiver accepts (also a ValueError)
    │   ├── EndpointRefused           the model endpoint rejects the key or the model
    │   │   └── TokensMissing         the model endpoint returns no token ids, which training needs
    │   ├── GroupNotOwed              the trainer accepts a group that was accepted, was dropped or does not exist
    │   ├── RewardMissing             a rollout for training has no score
    │   ├── RunBusy                   another process is writing into this run's directory
    │   ├── RunNotLive                no session of the run is active, so it cannot be controlled
    │   ├── ServiceStopped            the rollout service has ended: closed, stopped by a user or by a budget
    │   ├── UnknownName               no plug-in (engine, provider, ...) has this name
    │   ├── MissingExtra              the plug-in exists, but its optional packages are not installed
    │   ├── MissingProgram            a program that is not a Python package is not installed
    │   └── Unserialisable            an object cannot be sent to another process (also a TypeError)
    ├── AgentError                    the agent's own code must change
    │   ├── CallCancelled             the call to a remote agent was cancelled (also a concurrent.futures.CancelledError)
    │   ├── CallTimedOut              the call did not end before its deadline (also a TimeoutError)
    │   ├── ProgramFailed             the program that is the agent ended with an exit code other than 0, or was stopped
    │   ├── RemoteError               a remote agent raised an error whose class cannot be imported here
    │   ├── ContextFull               the conversation is longer than the model accepts
    │   ├── RequestRejected           the endpoint rejects the content of a request
    │   ├── SubAgentError             one sub-agent of a ParallelizableAgent failed
    │   ├── SubAgentsFailed           sub-agents failed and there is no aggregate function
    │   ├── TaskFailed                raised by TaskResponse.unwrap() for a response without success
    │   ├── ToolsUnsupported          the model endpoint returns tool calls as text
    │   └── TurnsUsedUp               the agent asked for more turns than --max-turns allows
    └── InfrastructureError           a process, a machine or a connection was lost
        ├── EndpointDown              the model endpoint does not answer, or only with errors
        ├── EngineFailed              the engine cannot continue
        ├── LeaseLost                 the lease has ended: released, expired, or its machine broke
        ├── LeaseTimeout              no machine became free in time (also a TimeoutError)
        ├── MachineFailed             a machine does not boot, does not answer or cannot be reset
        ├── PauseTimeout              workers still have requests in flight after the timeout (also a TimeoutError)
        ├── PoolFailed                too many machines failed in a row
        ├── PoolStopped               the pool is draining or has ended
        ├── ReplaysUsedUp             a rollout for training failed too often because of infrastructure
        ├── ProtocolError             the peer does not use paragent's protocol, or violates it
        ├── ServerLost                an agent or pool server has ended or cannot be reached (also a ConnectionError)
        ├── EnvironmentFailed         a resource of an environment (a browser, a child process, ...) failed
        ├── StoreFailed               results cannot be stored: the disk is full, the file is damaged
        └── WorkerLost                the worker died while it executed the task

    Interrupted (KeyboardInterrupt)   Ctrl-C; has all responses, including those of cancelled tasks
"""

from __future__ import annotations

from concurrent.futures import CancelledError
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
    "GroupNotOwed",
    "InfrastructureError",
    "Interrupted",
    "LeaseLost",
    "LeaseTimeout",
    "LimitExceeded",
    "MachineFailed",
    "MissingExtra",
    "MissingProgram",
    "ParagentError",
    "PauseTimeout",
    "PoolFailed",
    "PoolStopped",
    "ProgramFailed",
    "ProtocolError",
    "RemoteError",
    "ReplaysUsedUp",
    "RequestRejected",
    "RewardMissing",
    "RunBusy",
    "RunNotLive",
    "ServerLost",
    "ServiceStopped",
    "StoreFailed",
    "SubAgentError",
    "SubAgentsFailed",
    "TaskFailed",
    "TokensMissing",
    "ToolsUnsupported",
    "TurnsUsedUp",
    "UnknownName",
    "Unserialisable",
    "UsageError",
    "WorkerLost",
]


def _counted(number: int, noun: str) -> str:
    """As `paragent._internal.text.counted`, whose module takes longer to import than this one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class ParagentError(Exception):
    """The base class of all errors that paragent raises on purpose."""

    retryable: bool = False
    """Whether a retry may succeed."""


class UsageError(ParagentError):
    """The caller has to change the call; nothing was started."""


class AccessDenied(UsageError, PermissionError):
    """A peer does not accept the token or the certificate of the other, or a restricted server does not accept what it was
    sent: code, state, or the address of a server that it does not trust."""


class AgentStopped(UsageError, LookupError):
    """The remote agent does not exist any more: it was stopped, its owner dropped it or has ended, or its own process was
    killed because a cancelled call did not end."""


class LimitExceeded(UsageError, ValueError):
    """A value or a request exceeds a limit of the receiver."""


class ConfigError(UsageError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class BadData(UsageError, ValueError):
    """Lines of a benchmark file cannot be read as tasks; `problems` has `(line, reason)` for each."""

    def __init__(self, source: str, problems: Iterable[tuple[int, str]]) -> None:
        self.source, self.problems = source, tuple(problems)
        lines: dict[str, list[int]] = {}
        for line, reason in self.problems:
            lines.setdefault(reason, []).append(line)
        shown = "".join(
            f"\n  {source}:{same[0]}: {reason}"
            + (f" (the same in {_counted(len(same) - 1, 'more line')})" if len(same) > 1 else "")
            for reason, same in list(lines.items())[:10]
        )
        rest = sum(map(len, list(lines.values())[10:]))
        more = f"\n  ... and {rest} more" if rest else ""
        super().__init__(
            f"{_counted(len(self.problems), 'line')} cannot be read as a task; nothing was started:{shown}{more}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.source, self.problems))


class EndpointRefused(UsageError):
    """The model endpoint refuses a request for its key, its model, its address or its content, or there is no credit.

    Args:
        message: what it refuses, and what to do.
        status: the HTTP status; 402 for a lack of credit, whatever its status; None without one.
        answered: whether the endpoint has answered a request with this key, model and address before.
    """

    def __init__(self, message: str, status: int | None = None, *, answered: bool = False) -> None:
        super().__init__(message)
        self.status, self.answered = status, answered


class TokensMissing(EndpointRefused):
    """The model endpoint returns no token ids with its replies, or the agent does not use the endpoint of the run."""


class GroupNotOwed(UsageError, LookupError):
    """The trainer accepts a group that it does not have to accept: it was accepted or dropped before, or does not exist."""


class RewardMissing(UsageError):
    """A rollout for training ended and has no score: its task has no expected answer, and the environment gave no score."""


class ServiceStopped(UsageError):
    """The rollout service delivers no more groups: it was closed, a user stopped the run, or a budget is used up."""


class RunBusy(UsageError):
    """Another process is writing into the run's directory."""


class RunNotLive(UsageError):
    """No session of the run is active, so it cannot be controlled."""


class DuplicateTaskId(UsageError, ValueError):
    """Two tasks of one run have the same id."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"two tasks have the id {task_id!r}; use different ids, or leave `id` out to get a unique one")
        self.task_id = task_id
        """The id."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.task_id,))


class UnknownName(UsageError, LookupError):
    """No plug-in of this kind (engine, provider, ...) has this name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        import difflib  # not at the top: it is used only for this message

        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        close = difflib.get_close_matches(name, self.known, n=1)
        hint = f", did you mean {close[0]!r}? There" if close else "; there"
        super().__init__(f"there is no {kind} called {name!r}{hint} are: {', '.join(self.known)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.kind, self.name, self.known))


class MissingExtra(UsageError, ImportError):
    """An optional part of paragent needs packages that are not installed."""

    def __init__(self, part: str, extra: str, missing: str, command: str | None = None) -> None:
        from paragent._installation import install_command

        self.part, self.extra, self.missing = part, extra, missing
        self.command = command or install_command([extra])
        """Installs the packages on the host that raised the error."""
        super().__init__(f"{part} needs {missing}, which is not installed: {self.command}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.part, self.extra, self.missing, self.command))


class MissingProgram(UsageError):
    """A part of paragent needs a program that is not a Python package, and it is not installed or cannot run."""

    def __init__(self, part: str, problem: str, advice: str) -> None:
        self.part, self.problem, self.advice = part, problem, advice
        super().__init__(f"{part}: {problem}; {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.part, self.problem, self.advice))


class Unserialisable(UsageError, TypeError):
    """An object cannot be sent to another process; `path` names the part that cannot."""

    def __init__(self, what: str, path: str, reason: str) -> None:
        self.what, self.path, self.reason = what, path, reason
        super().__init__(
            f"{what} cannot be sent to another process because of {path}: {reason}. Use plain data instead, or create this "
            "object where it is used; `__getstate__` can leave out an attribute"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.what, self.path, self.reason))


class AgentError(ParagentError):
    """The code of an agent failed."""


class CallCancelled(AgentError, CancelledError):
    """A call to a remote agent was cancelled, by its caller or because the agent was stopped."""


class CallTimedOut(AgentError, TimeoutError):
    """A call to a remote agent did not end before its deadline, and was cancelled."""


class ProgramFailed(AgentError):
    """The program that is the agent ended with an exit code other than 0, was stopped by a limit, or could not be started."""


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
    """The agent used all turns of the rollout. If the agent does not catch it, the rollout ends and is scored."""


class RequestRejected(AgentError):
    """The endpoint rejects the content of a request; sending it again would not help."""


class SubAgentError(AgentError):
    """The failure of a sub-agent; an aggregate function gets it instead of the answer."""

    def __init__(self, agent_name: str, error_type: str, message: str, traceback: str = "") -> None:
        self.agent_name, self.error_type, self.message, self.traceback = agent_name, error_type, message, traceback
        super().__init__(f"sub-agent {agent_name!r} failed: {error_type}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.agent_name, self.error_type, self.message, self.traceback))


class SubAgentsFailed(AgentError):
    """Sub-agents failed and there is no aggregate function that could use the answers of the others."""

    def __init__(self, errors: Mapping[str, SubAgentError]) -> None:
        self.errors = dict(errors)
        """The errors by the name of the sub-agent."""
        listed = "; ".join(f"{name}: {error.error_type}: {error.message}" for name, error in self.errors.items())
        super().__init__(
            f"{_counted(len(self.errors), 'sub-agent')} failed: {listed}. "
            "Pass aggregate_func= to use the answers of the others"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.errors,))


class TaskFailed(AgentError):
    """`TaskResponse.unwrap` was called on a response without an answer; `response` has the reason."""

    def __init__(self, message: str, response: Any = None) -> None:
        super().__init__(message)
        self.response = response
        """The response without success."""


class ToolsUnsupported(AgentError):
    """The model endpoint returns tool calls as text; the message names the setting that parses them."""


class InfrastructureError(ParagentError):
    """A process, a machine or a connection was lost; a retry may succeed."""

    retryable = True


class EngineFailed(InfrastructureError):
    """The engine cannot execute any more tasks, for example because no worker process can start.

    `responses` has the responses so far, by task id, if the failed function returns such a dictionary.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.responses: dict[str, Any] = {}
        """The responses so far, by task id."""


class LeaseLost(InfrastructureError):
    """The lease of a machine has ended: it was released, its heartbeat was late, or the machine failed."""


class LeaseTimeout(InfrastructureError, TimeoutError):
    """No machine of the pool became free within the given time."""


class MachineFailed(InfrastructureError):
    """A machine does not boot, does not answer or cannot be reset, or a tool of its provider failed."""


class PauseTimeout(InfrastructureError, TimeoutError):
    """Requests of workers were still in flight when the time for a pause was over. The run stays paused."""


class PoolFailed(InfrastructureError):
    """Too many machines of the pool failed in a row; the image or the host is probably the cause."""

    retryable = False


class PoolStopped(InfrastructureError):
    """The pool is draining or has ended, and grants no more leases."""

    retryable = False


class ProtocolError(InfrastructureError):
    """The peer does not use paragent's protocol, or violates it; it may run another version."""

    retryable = False


class ServerLost(InfrastructureError, ConnectionError):
    """An agent or pool server died, was stopped or cannot be reached; pending requests may or may not have been executed."""


class EndpointDown(InfrastructureError):
    """The model endpoint did not answer, or only with errors, after all retries.

    Args:
        message: how it failed.
        others_answered: whether it answered other requests of this process meanwhile.
        unreachable: whether no endpoint is at the address, as far as the last error tells: no request would be answered.
    """

    def __init__(self, message: str, *, others_answered: bool = False, unreachable: bool = False) -> None:
        super().__init__(message)
        self.others_answered, self.unreachable = others_answered, unreachable


class ReplaysUsedUp(InfrastructureError):
    """A rollout for training failed too many times in a row because of infrastructure; `task`, `attempt` and `failures`."""

    def __init__(self, message: str, task: str = "", attempt: int = 0, failures: int = 0) -> None:
        self.task, self.attempt, self.failures = task, attempt, failures
        super().__init__(message)


class StoreFailed(InfrastructureError):
    """A result cannot be stored; the results that were stored before are safe."""


class EnvironmentFailed(InfrastructureError):
    """A resource of an environment failed: a browser died, a child process did not start, a machine was lost.

    It is not the agent's fault; a retry in a new environment may succeed.
    """


class WorkerLost(InfrastructureError):
    """The worker died while it executed the task."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the run. `responses` has the response to every task that was accepted, by id, in input order.

    After a second Ctrl-C it has the responses so far. It is empty after `iter_tasks`, which has yielded the responses,
    including those of cancelled tasks.
    """

    def __init__(self, responses: Mapping[str, Any], total: int | None = None) -> None:
        self.responses = dict(responses)
        """A response for each task, by id, including cancelled ones."""
        self.total = total
        """How many tasks there are; None after `iter_tasks`, and if the tasks came from a generator."""
        done = sum(1 for response in self.responses.values() if getattr(response, "success", False))
        if total is not None:
            summary = f"{done:,} of {_counted(total, 'task')} had succeeded; the others are cancelled"
        elif self.responses:
            summary = f"{_counted(done, 'task')} had succeeded; the others are cancelled"
        else:
            summary = "the running tasks are cancelled"
        super().__init__(f"interrupted: {summary}")
