"""A Python interpreter that keeps its variables from cell to cell, until it dies; then a new one takes over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from paragent.bounded import PartnerLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paragent.bounded import Limits, Partner

__all__ = ["GRACE", "Execution", "Interpreter", "LocalInterpreter"]

GRACE = 2.0
"""Seconds between the soft limit, which keeps the variables, and the hard one, which does not."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How a cell ended."""

    output: str
    error: str = ""
    """Empty if it ended well; else a traceback, or why the interpreter is gone."""
    lost: bool = False
    """Whether the interpreter is gone, and all variables with it."""


class Interpreter(Protocol):
    """What the environment needs of an interpreter, wherever it runs."""

    async def run(self, code: str, limit: float) -> Execution:
        """Run a cell for at most `limit` seconds.

        Raises:
            InfrastructureError: no interpreter can be had.
        """

    async def close(self) -> None:
        """End it; more calls do nothing."""


class LocalInterpreter:
    """An interpreter on this computer, in a process of its own that starts with the first cell."""

    def __init__(self, start: Callable[[Limits], Awaitable[Partner]], limits: Limits) -> None:
        self._start, self._limits = start, limits
        self._partner: Partner | None = None

    async def run(self, code: str, limit: float) -> Execution:
        partner, self._partner = self._partner, None
        if partner is None or not partner.alive:
            partner = await self._start(self._limits)
        try:
            reply = await partner.request({"code": code, "limit": limit}, limit + GRACE)
            ended = Execution(reply.output, "" if reply.value["ok"] else str(reply.value["error"]))
        except PartnerLost as lost:
            return Execution(lost.output, f"the interpreter {lost.reason}", lost=True)
        except (KeyError, TypeError):
            await partner.close()
            return Execution("", "the interpreter broke its own protocol and was stopped", lost=True)
        self._partner = partner
        return ended

    async def close(self) -> None:
        """End the process."""
        partner, self._partner = self._partner, None
        if partner is not None:
            await partner.close()
