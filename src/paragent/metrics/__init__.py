"""How final answers are scored: one contract, one file per metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._plugins import Family, Member, load_dotted
from paragent.errors import ConfigError
from paragent.metrics.base import Metric, Score

if TYPE_CHECKING:
    from paragent.metrics.base import Ask

__all__ = ["METRICS", "Metric", "Score", "open_metric"]

METRICS = Family(
    kind="metric",
    members={
        "contains": Member("paragent.metrics.words:Contains"),
        "exact_match": Member("paragent.metrics.words:ExactMatch"),
        "f1": Member("paragent.metrics.words:F1"),
        "llm_judge": Member("paragent.metrics.judging:LlmJudge"),
        "math": Member("paragent.metrics.mathematics:Mathematics", extra="math"),
        "numeric": Member("paragent.metrics.number:Numeric"),
    },
    entry_points="paragent.metrics",
)


def open_metric(name: str, *, ask: Ask | None = None) -> Metric:
    """Return the metric of this name or of this `module:Class`; the caller closes it.

    Raises:
        UnknownName: there is none of this name.
        MissingExtra: its optional packages are not installed.
        ConfigError: what was named is no metric, or it needs a model and `ask` is None.
    """
    found = load_dotted(name) if ":" in name else METRICS.load(name)
    if not (isinstance(found, type) and issubclass(found, Metric)):
        raise ConfigError(f"{name!r} is no metric: it must be a subclass of paragent.metrics.Metric")
    if found.needs_model and ask is None:
        raise ConfigError(f"the metric {name!r} asks a model; say which one (--judge-model)")
    return found(ask)
