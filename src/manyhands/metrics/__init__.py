"""How final answers are scored: one contract, one file per metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands._plugins import Family, Member, load_dotted
from manyhands.errors import ConfigError
from manyhands.metrics.base import Metric, Score

if TYPE_CHECKING:
    from manyhands.metrics.base import Ask

__all__ = ["METRICS", "Metric", "Score", "open_metric"]

METRICS = Family(
    kind="metric",
    members={
        "contains": Member("manyhands.metrics.words:Contains"),
        "exact_match": Member("manyhands.metrics.words:ExactMatch"),
        "f1": Member("manyhands.metrics.words:F1"),
        "llm_judge": Member("manyhands.metrics.judging:LlmJudge"),
        "math": Member("manyhands.metrics.mathematics:Mathematics", extra="math"),
        "numeric": Member("manyhands.metrics.number:Numeric"),
    },
    entry_points="manyhands.metrics",
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
        raise ConfigError(f"{name!r} is no metric: it must be a subclass of manyhands.metrics.Metric")
    if found.needs_model and ask is None:
        raise ConfigError(f"the metric {name!r} asks a model; say which one (--judge-model)")
    return found(ask)
