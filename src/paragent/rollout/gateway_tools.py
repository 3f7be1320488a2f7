"""`GatewayTools`: the tools and tool calls of an agent that has its own loop, as far as the gateway sees them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected
from paragent.rollout.branches import size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.envs import ToolResult

__all__ = ["MOST_RECORDED", "GatewayTools"]

MOST_RECORDED = 512 << 20
"""Bytes of tools and tool calls that are recorded. Nothing else limits the number of calls, and a program could use all memory
of the worker."""
_STEP_BYTES = 1000


class GatewayTools:
    """The tools and tool calls of one rollout."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[str, Any]] | None = None
        """The tools in its requests to the model, by their JSON; None if it has made no request."""
        self._served = 0
        """Its tool calls through the gateway. Agents that call a model send most of their results there, too."""
        self._last: Sequence[dict[str, Any]] = ()
        self._results: set[str] = set()
        """The ids of the tool calls whose results it has sent to the model."""
        self._recorded = 0
        """About how many bytes are recorded."""

    @property
    def calls(self) -> int:
        """The number of its tool calls, as far as it is known."""
        return max(len(self._results), self._served)

    def add_request(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> None:
        """Add the tools and the tool results of a request to the model.

        Raises:
            RequestRejected: too much is recorded already.
        """
        self.sent = self.sent or {}
        if tools and tools != self._last:
            self._record(sum(map(size_of, tools)))
            self._last = tools
            self.sent |= {json.dumps(tool, sort_keys=True): tool for tool in tools}
        self._results |= {str(one.get("tool_call_id")) for one in messages if one.get("role") == "tool"}

    def add_call(self, arguments: Any) -> None:
        """Add a tool call through the gateway.

        Raises:
            RequestRejected: too much is recorded already.
        """
        self._record(_STEP_BYTES + size_of(arguments))
        self._served += 1

    def add_result(self, result: ToolResult) -> None:
        """Add the result of such a call."""
        self._recorded += len(result.text) + sum(map(len, (*result.images, *result.kept)))

    def _record(self, size: int) -> None:
        if self._recorded + size > MOST_RECORDED:
            raise RequestRejected(f"the tools and tool calls of this rollout have more than {MOST_RECORDED >> 20} MB")
        self._recorded += size
