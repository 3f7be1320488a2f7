"""How final answers are scored: one contract, one file per metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.registry import Implementation, Registry, import_object
from paragent.errors import ConfigError
from paragent.scorers.base import Metric, Score

if TYPE_CHECKING:
    from paragent.scorers.base import Ask

__all__ = ["METRICS", "Metric", "Score", "open_metric"]

METRICS = Registry(
    kind="metric",
    implementations={
        "contains": Implementation("paragent.scorers.text:Contains"),
        "exact_match": Implementation("paragent.scorers.text:ExactMatch"),
        "f1": Implementation("paragent.scorers.text:F1"),
        "llm_judge": Implementation("paragent.scorers.judge:LlmJudge"),
        "math": Implementation("paragent.scorers.math:Mathematics", extra="math"),
        "numeric": Implementation("paragent.scorers.number:Numeric"),
    },
    entry_points="paragent.scorers",
)


def open_metric(name: str, *, ask: Ask | None = None) -> Metric:
    """Return the metric of this name or of this `module:Class`; the caller closes it.

    Raises:
        UnknownName: there is none of this name.
        MissingExtra: its optional packages are not installed.
        ConfigError: what was named is no metric, or it needs a model and `ask` is None.
    """
    found = import_object(name) if ":" in name else METRICS.load(name)
    if not (isinstance(found, type) and issubclass(found, Metric)):
        raise ConfigError(f"{name!r} is no metric: it must be a subclass of paragent.scorers.Metric")
    if found.needs_model and ask is None:
        raise ConfigError(f"the metric {name!r} asks a model; say which one (--judge-model)")
    return found(ask)
