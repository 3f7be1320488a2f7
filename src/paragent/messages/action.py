"""What an agent decided to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["ActionModel"]


@dataclass(slots=True)
class ActionModel:
    """A decision: call a tool with parameters, or, without a tool, an answer in `policy_info`."""

    tool_name: str | None = None
    tool_call_id: str | None = None
    agent_name: str | None = None
    action_name: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    policy_info: Any = None
