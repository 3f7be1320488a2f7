"""The contract of engines, and the registry of the engines by name."""

from __future__ import annotations

import abc
import itertools
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from paragent._internal.registry import Implementation, Registry, import_named
from paragent._internal.text import counted
from paragent._internal.validation import reject_unknown
from paragent.errors import ConfigError, EngineFailed
from paragent.worker.protocol import Call

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from paragent.config import RunConfig
    from paragent.execution import Outcome

__all__ = [
    "CHANGES_KEPT",
    "ENGINES",
    "Call",
    "RuntimeEngine",
    "WorkerChange",
    "describe_loss",
    "lost_calls",
    "open_engine",
    "require_no_cluster_settings",
    "slots_used",
    "thread_failure",
]

CHANGES_KEPT = 10_000
"""Changes of workers that an engine keeps for a caller that asks about once a second."""


class WorkerChange(NamedTuple):
    """A worker started or ended."""

    worker: str
    """`host:pid`."""
    event: str
    """`started`: the process exists. `ready`: it has sent its first message. `lost`: it ended unexpectedly, or calls were lost
    with it. `stopped`: the engine ended it, for example because of a time limit."""
    at: float
    """When, in seconds since the epoch."""
    detail: str = ""
    """Why it ended, and with `describe_loss` how many calls were lost with it."""


_LOST_CALLS = re.compile(r"; (\d[\d,]*) calls? lost$")


def describe_loss(reason: str, calls: int) -> str:
    """Return the detail of a lost worker: the reason, and the number of calls that it executed."""
    return f"{reason}; {counted(calls, 'call')} lost" if calls else reason


def lost_calls(detail: str) -> int:
    """Return the number of calls in a text of `describe_loss`; 0 if it has none."""
    found = _LOST_CALLS.search(detail)
    return int(found[1].replace(",", "")) if found else 0


class RuntimeEngine(abc.ABC):
    """Runs calls. A subclass decides where; retries, order, the number of calls in flight and progress are not its job.

    The guarantees, checked by `paragent.testing.EngineContract`:

    - Every submitted call has exactly one outcome, whatever happens to it, unless the engine is closed.
    - Time limits count from the start of the code and stop it. A worker that dies affects only the calls that it was running;
      their outcomes have an error that says why, which is logged.
    - There are at most `config.workers` workers, and each runs at most `config.concurrency` calls at a time.
    - `submit`, `wait` and `cancel` may be called from different threads. Constructing an engine starts nothing.
    """

    sends_modules = False
    """Workers may run where the program's own modules are not installed, so payloads include them."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        """The configuration of the run."""
        self.numbers = itertools.count()
        """The numbers of calls, shared by all runs that use the engine, so that each number is used once."""
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """Reserve the engine for one run; return False if another run uses it."""
        return self._claimed.acquire(blocking=False)

    def unclaim(self) -> None:
        """End the reservation."""
        self._claimed.release()

    @property
    def window(self) -> int:
        """How many calls without an outcome the engine should hold; callers submit no more than that."""
        return 2 * self.config.workers * max(self.config.sync_limit, self.config.async_limit)

    def running(self, sync_calls: int, async_calls: int) -> int:
        """Return how many of this many calls occupy a slot of a worker; the others wait in a queue."""
        return slots_used(self.config, self.config.workers, sync_calls, async_calls)

    def expect(self, calls: int) -> None:  # noqa: B027 - a hint, which an engine may ignore
        """Hint: about this many calls will be submitted soon. An engine whose workers start quickly may start them.

        It never raises; `submit` and `wait` report why workers cannot start.
        """

    @abc.abstractmethod
    def submit(self, calls: Sequence[Call]) -> None:
        """Accept `calls` and start workers if needed; returns at once.

        Raises:
            EngineFailed: the engine cannot run anything; the message says what to do.
        """

    @abc.abstractmethod
    def wait(self, timeout: float) -> list[Outcome]:
        """Return the outcomes since the last call, waiting up to `timeout` seconds for the first.

        After an interruption (`KeyboardInterrupt`), the next call returns what this one would have returned.

        Raises:
            EngineFailed: no outcome will ever arrive, for example because workers cannot be started.
        """

    @abc.abstractmethod
    def cancel(self, grace: float) -> None:
        """Stop all calls: cancel async code and give it `grace` seconds to clean up, then kill the workers that still run
        something. Workers that run only sync code are killed at once. Every call gets its outcome; the engine stays usable."""

    def worker_changes(self) -> list[WorkerChange]:
        """Return what happened to workers since the last call, also after `close`; empty if the engine does not record it."""
        return []

    @abc.abstractmethod
    def close(self) -> None:
        """End every worker and free all resources; idempotent. Outcomes that were not fetched are dropped."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def slots_used(config: RunConfig, workers: int, sync_calls: int, async_calls: int) -> int:
    """Return how many calls can run at a time, of this many, in so many workers."""
    if not config.reuse_process:
        return min(sync_calls + async_calls, workers)
    if config.concurrency is not None:
        return min(sync_calls + async_calls, workers * config.concurrency)
    return min(sync_calls, workers * config.sync_limit) + min(async_calls, workers * config.async_limit)


def require_no_cluster_settings(engine: str, config: RunConfig) -> None:
    """Check that a configuration has no settings that the engines of this host would ignore.

    Raises:
        ConfigError: it has engine options, or `in_local=False`.
    """
    reject_unknown(f"the engine {engine!r}", "option", map(str, config.engine_options), ())
    if not config.in_local:
        raise ConfigError(
            f"the engine {engine!r} runs on this host, so in_local=False cannot be used; for a cluster, use "
            "engine_name='ray' or engine_name='spark'"
        )


def thread_failure(name: str, error: BaseException) -> EngineFailed:
    """Return the error that `submit` and `wait` raise when a thread of the engine cannot start or ended unexpectedly."""
    from paragent._internal.tracebacks import message_of, type_name  # not at the top: rarely needed

    failure = EngineFailed(
        f"the engine's thread {name!r} failed ({type_name(error)}: {message_of(error)}). If the system cannot start another "
        "thread, raise its limit (ulimit -u) or lower worker_num and concurrency; otherwise please report this as a bug"
    )
    failure.__cause__ = error
    return failure


ENGINES = Registry(
    kind="engine",
    implementations={
        "inline": Implementation("paragent.engines.inline:InlineRuntime"),
        "local": Implementation("paragent.engines.local:LocalRuntime"),
        "ray": Implementation("paragent.engines.ray:RayRuntime", extra="ray"),
        "spark": Implementation("paragent.engines.spark:SparkRuntime", extra="spark"),
    },
    entry_points="paragent.engines",
)


def open_engine(config: RunConfig) -> RuntimeEngine:
    """Return a new engine of the kind that `config` names; the caller owns it and closes it.

    Raises:
        UnknownName: no engine has this name.
        MissingExtra: the engine's optional packages are not installed.
        ConfigError: `config.cls` cannot be imported, or is not an engine class.
    """
    chosen: Any = config.cls if config.cls is not None else ENGINES.load(config.engine_name)
    if isinstance(chosen, str):
        chosen = import_named(chosen)
    if not (isinstance(chosen, type) and issubclass(chosen, RuntimeEngine)):
        raise ConfigError(f"cls must be a subclass of RuntimeEngine or the path to one, not {chosen!r}")
    return chosen(config)
