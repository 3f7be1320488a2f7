"""What runs in helper processes: metrics and parsers, which read files that an agent's machine produced."""

from __future__ import annotations

from typing import Any

from paragent._internal.registry import import_object, import_required
from paragent.osworld.evaluators.registry import METRICS, STRICT

__all__ = ["load_metric", "load_parser", "parse", "score"]


def load_metric(name: str) -> None:
    """Import a metric, so that the calls that are confined to a folder find it in memory.

    Raises:
        ParagentError: it does not exist here, or needs something that is not installed.
    """
    METRICS.load(name)
    import_required()


def load_parser(function: str) -> None:
    """Import `package.module:function`, for the same reason."""
    import_object(function)
    import_required()


def score(name: str, arguments: list[Any], options: dict[str, Any], strict: bool = False) -> float:
    """Return what a metric says about the result and, if the task has one, the expectation.

    Args:
        name: the metric's.
        arguments: the result, or the result and what is expected.
        options: the task's.
        strict: whether a metric that has a known mistake of OSWorld's leaves it out.

    Raises:
        Exception: whatever the metric raised.
    """
    more = {"strict_evaluators": True} if strict and name in STRICT else {}
    return float(METRICS.load(name)(*arguments, **options, **more))


def parse(function: str, arguments: list[Any]) -> Any:
    """Return what `package.module:function` returns for the arguments.

    Raises:
        Exception: whatever the function raised.
    """
    return import_object(function)(*arguments)
