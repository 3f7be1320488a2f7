"""Functions that run in child processes: metrics and parsers of untrusted files from a machine."""

from __future__ import annotations

from typing import Any

from paragent._internal.registry import import_object, import_required
from paragent.osworld.evaluators.registry import METRICS, STRICT

__all__ = ["load_metric", "load_parser", "parse", "score"]


def load_metric(name: str) -> None:
    """Import a metric, so that calls that are confined to a folder find it in memory.

    Raises:
        ParagentError: the metric does not exist, or needs something that is not installed.
    """
    METRICS.load(name)
    import_required()


def load_parser(function: str) -> None:
    """Import `package.module:function`, for the same reason."""
    import_object(function)
    import_required()


def score(name: str, arguments: list[Any], options: dict[str, Any], strict: bool = False) -> float:
    """Return the score of a metric.

    Args:
        name: of the metric.
        arguments: the result, or the result and the expectation.
        options: the task's options of the metric.
        strict: whether a metric with a known bug of OSWorld corrects it.

    Raises:
        Exception: any exception of the metric.
    """
    more = {"strict_evaluators": True} if strict and name in STRICT else {}
    return float(METRICS.load(name)(*arguments, **options, **more))


def parse(function: str, arguments: list[Any]) -> Any:
    """Return the result of `package.module:function` for the arguments.

    Raises:
        Exception: any exception of the function.
    """
    return import_object(function)(*arguments)
