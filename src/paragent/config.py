"""How a run is carried out."""

from __future__ import annotations

import logging as _logging
import os
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from paragent._internal.validation import at_least, check_fields, flag, mapping, optional, reject_unknown, seconds, text
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ASYNC_CONCURRENCY", "LOST_RETRIES", "SYNC_CONCURRENCY", "EngineName", "RunConfig", "init"]


class EngineName(StrEnum):
    """Where attempts run. A plain string works wherever a member does."""

    INLINE = "inline"
    """In this very process: for debugging, and for async agents that need no isolation."""
    LOCAL = "local"
    """In worker processes on this machine."""
    RAY = "ray"
    """In long-lived workers on a Ray cluster."""
    SPARK = "spark"
    """In long-lived workers on a Spark cluster."""


ASYNC_CONCURRENCY = 1000
"""Async tasks at a time in one worker where `concurrency` is not given: they wait, they do not compute."""
SYNC_CONCURRENCY = 1
"""Sync tasks at a time in one worker where `concurrency` is not given: they may compute or not be thread-safe."""
LOST_RETRIES = 2
"""Further attempts after a lost worker where `max_retries` is not given."""


@dataclass(slots=True, kw_only=True, init=False)
class RunConfig:
    """The settings of a run; every one has a default that fits a laptop.

    Raises:
        ConfigError: a field is unknown (the message lists the known ones), of the wrong type or out of range.
    """

    engine_name: str = EngineName.LOCAL
    """An `EngineName`, or the name that another package registered in the entry-point group `paragent.engines`."""
    worker_num: int | None = None
    """The number of workers; None: one for each core this process may use."""
    concurrency: int | None = None
    """Tasks at a time in one worker. None: 1,000 async ones, one sync one. A number holds for both together."""
    sequence_dependent: bool = False
    """Run the tasks one after the other, each answer becoming the input of the next; a failure ends the chain."""
    in_local: bool = True
    """Ray and Spark: start what is needed on this machine. False: connect to the cluster that `engine_options` or the
    ecosystem's environment variables name, and never start one."""
    cls: Any = None
    """A `RuntimeEngine` class of one's own, or the dotted path to one; wins over `engine_name`."""
    timeout: float | None = None
    """The time limit of each task in seconds of work, for tasks that have none of their own."""
    max_retries: int | None = None
    """Further attempts after one that was lost with its worker or failed with an error that is not marked as final.
    None: two after a lost worker, none after the task's own failure."""
    progress: bool | Callable[[Any], None] = False
    """True: a live display on the terminal. A function: called with a `Progress` now and then."""
    reuse_process: bool = True
    """False: every attempt gets a fresh worker process, which ends with it."""
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """What only one engine understands; docs/engines.md lists the keys of each."""
    job_name: str = "paragent"
    """How the run is called where names are shown: in the display of progress, on Ray's and Spark's dashboards."""

    def __init__(self, **settings: Any) -> None:
        specs = fields(self)
        reject_unknown("RunConfig", "field", settings, [spec.name for spec in specs])
        for spec in specs:
            if spec.name in settings:
                value = settings[spec.name]
            elif callable(spec.default_factory):
                value = spec.default_factory()
            else:
                value = spec.default
            setattr(self, spec.name, value)
        check_fields(self, _CHECKS)

    def with_settings(self, **settings: Any) -> RunConfig:
        """Return a copy with some settings changed, validated like a new one."""
        return replace(self, **settings)

    @property
    def workers(self) -> int:
        """The number of workers, with the default filled in."""
        return self.worker_num if self.worker_num is not None else usable_cores()

    @property
    def sync_limit(self) -> int:
        """How many sync tasks one worker runs at a time."""
        return self.concurrency if self.concurrency is not None else SYNC_CONCURRENCY

    @property
    def async_limit(self) -> int:
        """How many async tasks one worker runs at a time."""
        return self.concurrency if self.concurrency is not None else ASYNC_CONCURRENCY


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


def usable_cores() -> int:
    """Return how many cores this process may use, which a container or `taskset` makes fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def init(
    *,
    token: str | None = None,
    project: str | None = None,
    name: str | None = None,
    logging: int | str | None = None,
) -> None:
    """Set what holds for the whole program. Never needed; calling it again changes what is given and nothing else.

    The settings are environment variables of this process, so that every process it starts has them too.

    Args:
        token: the secret that this program and its agent servers share (`PARAGENT_TOKEN`); without it programs of one
            user on one machine share a file that only they can read.
        project: what this program belongs to (`PARAGENT_PROJECT`). It is shown, with the name, where a program is one of
            many: as a client of agent servers (`paragent agents`) and as a holder of machines (`paragent pool status`).
        name: the name of this run of it (`PARAGENT_NAME`).
        logging: the level of messages that paragent logs, as `logging.INFO` or `"INFO"`.

    Raises:
        ConfigError: a setting is of the wrong type, or the token is too short to be a secret.
    """
    for variable, value in (("PARAGENT_TOKEN", token), ("PARAGENT_PROJECT", project), ("PARAGENT_NAME", name)):
        if value is not None:
            _require_text(variable, value)
            os.environ[variable] = value
    if logging is not None:
        try:
            _logging.getLogger("paragent").setLevel(logging)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"logging must be a level such as 'INFO', not {logging!r}") from error
        _logging.basicConfig()


def _require_text(variable: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{variable.removeprefix('PARAGENT_').lower()} must be a non-empty string, not {value!r}")
    if variable == "PARAGENT_TOKEN" and len(value) < 16:
        raise ConfigError("a token must have at least 16 characters, or it is no secret")
