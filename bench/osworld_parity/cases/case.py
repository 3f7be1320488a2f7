"""One call of a metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """A metric, what getters found for it, and the task's options; all of it JSON."""

    metric: str
    arguments: list[Any]
    options: dict[str, Any] = field(default_factory=dict)
