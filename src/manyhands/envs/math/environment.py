"""Mathematics: an exact calculator, scored by mathematical equality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from manyhands._plugins import require
from manyhands.bounded import CallFailed, Helpers
from manyhands.envs.base import Environment
from manyhands.envs.tools import ToolFailed, tool
from manyhands.metrics.mathematics import Mathematics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.tasks import Item

require("sympy")

__all__ = ["MathEnvironment"]

_LIMIT = 10.0
"""Seconds for one computation; what takes longer grows without bound more often than it ends."""
_LONGEST = 10_000
"""Characters of an expression or of a result that an agent may need to see."""
_CALCULATOR = "manyhands.envs.math.calculator"


class MathEnvironment(Environment):
    """Questions with a mathematical answer; an exact calculator helps.

    Own score: `math`, whether the final answer equals a reference as mathematics.
    """

    name = "math"
    metric = "math"
    instructions = (
        "Solve the problem. Use the calculator instead of computing in your head; it is exact. "
        "End with the final answer alone in \\boxed{...}."
    )

    @tool
    async def calculator(
        self,
        expression: Annotated[
            str, "such as 2/3 + sqrt(8), solve(x**2 - 2 == 0, x), integrate(sin(x), (x, 0, pi)), N(pi, 50)"
        ],
    ) -> str:
        """Compute an expression exactly: arithmetic, functions, equations, calculus, number theory."""
        if len(expression) > _LONGEST:
            raise ToolFailed(f"the expression is longer than {_LONGEST} characters")
        helpers = await self.shared.get(_CALCULATOR, lambda: Helpers.running(_CALCULATOR))
        try:
            value = str(await helpers.call("compute", expression, limit=_LIMIT))
        except CallFailed as error:
            what = "the computation" if error.kind == "limit" else "this cannot be computed:"
            raise ToolFailed(f"{what} {error}") from None
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]} ... ({len(value)} characters in all)"

    async def score(
        self, item: Item, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        metric = await self.shared.get(Mathematics.name, Mathematics.running)
        value = (await metric.score(item, answer)).value
        return None if value is None else {"math": value}
