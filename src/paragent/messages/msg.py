"""A message between agents."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from paragent._ids import new_id

__all__ = ["Msg"]


@dataclass(slots=True)
class Msg:
    """One message: who says it, in which role, and what.

    Fields are read as attributes (`msg.content`) or as items (`msg["content"]`). Two messages are equal when they say
    the same thing; id and time of creation do not count.
    """

    name: str
    content: Any = None
    role: str = "assistant"
    metadata: dict[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: new_id("msg"), compare=False)
    timestamp: float = field(default_factory=time.time, compare=False)

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the field called `key`, or `default` where there is none."""
        return getattr(self, key) if key in self.__dataclass_fields__ else default
