"""Settings of a run (`RunConfig`) and of the whole program (`init`)."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict

from paragent._internal.cgroups import cgroup_limits
from paragent._internal.representations import short_record
from paragent._internal.validation import (
    at_least,
    check_fields,
    flag,
    mapping,
    optional,
    seconds,
    suggests_fields,
    text,
)
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Unpack

__all__ = ["ASYNC_CONCURRENCY", "LOST_RETRIES", "SYNC_CONCURRENCY", "EngineName", "RunConfig", "RunSettings", "init"]


class EngineName(StrEnum):
    """The engines of paragent. A plain string works wherever a member does."""

    INLINE = "inline"
    """In this process: for debugging, and for async agents that need no isolation."""
    LOCAL = "local"
    """In worker processes on this host."""
    RAY = "ray"
    """In worker processes on a Ray cluster."""
    SPARK = "spark"
    """In worker processes on a Spark cluster."""


ASYNC_CONCURRENCY = 1000
"""Async tasks at the same time in one worker if `concurrency` is not set: they wait, they do not compute."""
SYNC_CONCURRENCY = 1
"""Sync tasks at the same time in one worker if `concurrency` is not set: they may compute or not be thread-safe."""
LOST_RETRIES = 2
"""Retries after a lost worker if `max_retries` is not set."""


@suggests_fields
@dataclass(slots=True, kw_only=True, repr=False)
class RunConfig:
    """The settings of a run. The defaults suit a laptop.

    Raises:
        ConfigError: a field is unknown (the message lists the known ones), of the wrong type or out of range.
    """

    engine_name: str = EngineName.LOCAL
    """An `EngineName`, or a name that another package registered in the entry-point group `paragent.engines`."""
    worker_num: int | None = None
    """The number of workers; None: one for each core this process may use."""
    concurrency: int | None = None
    """Tasks at the same time in one worker. None: 1,000 async tasks and 1 sync task. A number: both kinds together."""
    sequence_dependent: bool = False
    """Run the tasks one after the other; each answer is the input of the next task. A failure ends the sequence."""
    in_local: bool = True
    """Ray and Spark: start a cluster on this host. False: connect to the cluster that `engine_options` or the environment
    variables of Ray and Spark name, and never start one."""
    cls: type | str | None = None
    """Your own `RuntimeEngine` class, or the path to it, `module:Class`, instead of `engine_name`."""
    timeout: float | None = None
    """The time limit in seconds of work, for tasks without a limit of their own."""
    max_retries: int | None = None
    """Retries after the worker was lost, and after the task raised an error that is not marked as final. None: two after a
    lost worker, none after an error of the task."""
    progress: bool | Callable[[Any], object] = False
    """True: a live display on the terminal. A function: called with a `Progress` a few times a second."""
    reuse_process: bool = True
    """False: a new worker process for each execution."""
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of one engine; docs/guide/engines.md lists them."""
    job_name: str = "paragent"
    """The name of the run in the progress display and on the dashboards of Ray and Spark."""

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        _require_one_engine(self)

    def __repr__(self) -> str:
        return short_record(self)

    def with_settings(self, **settings: Unpack[RunSettings]) -> RunConfig:
        """Return a copy with some settings changed, validated like a new one."""
        return replace(self, **settings)

    @property
    def workers(self) -> int:
        """The number of workers, with the default filled in."""
        return self.worker_num if self.worker_num is not None else usable_cores()

    @property
    def sync_limit(self) -> int:
        """How many sync tasks one worker runs at the same time."""
        return self.concurrency if self.concurrency is not None else SYNC_CONCURRENCY

    @property
    def async_limit(self) -> int:
        """How many async tasks one worker runs at the same time."""
        return self.concurrency if self.concurrency is not None else ASYNC_CONCURRENCY


class RunSettings(TypedDict, total=False):
    """The fields of `RunConfig` as keyword arguments: `def run(**settings: Unpack[RunSettings])`."""

    engine_name: str
    worker_num: int | None
    concurrency: int | None
    sequence_dependent: bool
    in_local: bool
    cls: type | str | None
    timeout: float | None
    max_retries: int | None
    progress: bool | Callable[[Any], object]
    reuse_process: bool
    engine_options: Mapping[str, Any]
    job_name: str


def _progress(value: Any, name: str) -> Any:
    if not isinstance(value, bool) and not callable(value):
        raise ConfigError(f"{name} must be True, False or a function, not {value!r}")
    return value


_CHECKS = {
    "engine_name": text,
    "worker_num": optional(at_least(1)),
    "concurrency": optional(at_least(1)),
    "sequence_dependent": flag,
    "in_local": flag,
    "timeout": optional(seconds),
    "max_retries": optional(at_least(0)),
    "progress": _progress,
    "reuse_process": flag,
    "engine_options": mapping,
    "job_name": text,
}


def _require_one_engine(config: RunConfig) -> None:
    if config.cls is not None and config.engine_name != EngineName.LOCAL:
        raise ConfigError(f"cls and engine_name={str(config.engine_name)!r} name two engines; give one of them")


def usable_cores() -> int:
    """Return how many cores this process may use; a container or `taskset` can reduce them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed, _ = cgroup_limits()
    return cores if allowed is None else max(1, min(cores, math.ceil(allowed)))


_SHORTEST_TOKEN = 16
"""Characters, as in `paragent.transport.auth`, which this module must not import."""


def init(
    *,
    token: str | None = None,
    project: str | None = None,
    name: str | None = None,
    logging: int | str | None = None,
) -> None:
    """Set options of the whole program. Calling it is optional; a second call changes only the options that it is given.

    The options are environment variables of this process, so that the processes it starts have them too.

    Args:
        token: the secret that this program and its agent servers share (`PARAGENT_TOKEN`). By default, the programs of one
            user on one host share a file that only this user can read.
        project: the project of this program (`PARAGENT_PROJECT`). `paragent agents` and `paragent pool status`
            show it, with the name, for the clients of agent servers and pools.
        name: the name of this program (`PARAGENT_NAME`).
        logging: the level of paragent's log messages, as `logging.INFO` or `"INFO"`.

    Raises:
        ConfigError: a setting is of the wrong type, or the token is too short to be a secret.
    """
    given = {"token": token, "project": project, "name": name}
    for option, value in given.items():
        if value is not None:
            text(value, option)
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise ConfigError(
            f"a token must have at least {_SHORTEST_TOKEN} characters; make one with: "
            "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    os.environ.update({f"PARAGENT_{option.upper()}": value for option, value in given.items() if value is not None})
    if logging is not None:
        import logging as _logging  # not at the top: programs that do not log start faster

        try:
            _logging.getLogger("paragent").setLevel(logging)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"logging must be a level such as 'INFO', not {logging!r}") from error
        _logging.basicConfig()
