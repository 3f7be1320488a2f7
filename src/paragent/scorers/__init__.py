"""Scorers: functions from a task and a final answer to a score from 0 to 1. `--metric` chooses one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from paragent._internal.registry import Implementation, Registry, import_named
from paragent.errors import ConfigError
from paragent.scorers.base import Score, Scorer

if TYPE_CHECKING:
    from paragent.scorers.base import Ask

__all__ = ["SCORERS", "Score", "Scorer", "open_scorer", "scorer_class"]

SCORERS = Registry(
    kind="scorer",
    implementations={
        "contains": Implementation("paragent.scorers.text:Contains"),
        "exact_match": Implementation("paragent.scorers.text:ExactMatch"),
        "f1": Implementation("paragent.scorers.text:F1"),
        "llm_judge": Implementation("paragent.scorers.judge:LlmJudge"),
        "math": Implementation("paragent.scorers.math:Mathematics", extra="math"),
        "numeric": Implementation("paragent.scorers.text:Numeric"),
    },
    entry_points="paragent.scorers",
)


def scorer_class(name: str) -> type[Scorer]:
    """Return the class of a scorer; name and errors as for `open_scorer`."""
    found = import_named(name) if ":" in name else SCORERS.load(name)
    if not (isinstance(found, type) and issubclass(found, Scorer)):
        raise ConfigError(f"{name!r} is not a scorer: it must be a subclass of paragent.Scorer")
    if inspect.isfunction(found.score) and not inspect.iscoroutinefunction(inspect.unwrap(found.score)):
        raise ConfigError(
            f"the method score of {name!r} must be `async def score(self, task, answer)` and return a Score"
        )
    return found


def open_scorer(name: str, *, ask: Ask | None = None) -> Scorer:
    """Return a new scorer; the caller owns it and closes it.

    Args:
        name: a registered name, or `module:Class`.
        ask: the judge model, for scorers with `needs_model`.

    Raises:
        UnknownName: no scorer has this name.
        MissingExtra: the scorer's optional packages are not installed.
        ConfigError: `name` cannot be imported, is not a subclass of `Scorer` or has no `async def score`, or it needs a model
            and `ask` is None.
    """
    found = scorer_class(name)
    if found.needs_model and ask is None:
        raise ConfigError(f"the scorer {name!r} needs a judge model: set --judge-model")
    return found(ask)
