"""One call of a metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """A metric, the values of its getters, and the task's options, all JSON."""

    metric: str
    arguments: list[Any]
    options: dict[str, Any] = field(default_factory=dict)
