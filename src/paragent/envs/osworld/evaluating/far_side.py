"""What runs in helper processes: metrics and parsers, which read files that an agent's machine produced."""

from __future__ import annotations

import inspect
from typing import Any

from paragent._plugins import load_dotted
from paragent.envs.osworld.evaluating.families import METRICS

__all__ = ["parse", "score"]


def score(name: str, result: Any, expected: Any, options: dict[str, Any], strict: bool = False) -> float:
    """Return what a metric says. Without an expectation it is called without one.

    A metric that knows the option `strict_evaluators` is told to be strict.

    Raises:
        Exception: whatever the metric raised.
    """
    metric = METRICS.load(name)
    if strict and "strict_evaluators" in inspect.signature(metric).parameters:
        options = options | {"strict_evaluators": True}
    value = metric(result, **options) if expected is None else metric(result, expected, **options)
    return float(value)


def parse(function: str, arguments: list[Any]) -> Any:
    """Return what `package.module:function` returns for the arguments.

    Raises:
        Exception: whatever the function raised.
    """
    return load_dotted(function)(*arguments)
