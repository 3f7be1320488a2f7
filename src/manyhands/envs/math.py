"""Mathematics: an exact calculator, scored by mathematical equality."""

from __future__ import annotations

import ast
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from manyhands.envs.base import Environment
from manyhands.envs.tools import ToolFailed, tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.tasks import Item

__all__ = ["MathEnvironment"]

_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class MathEnvironment(Environment):
    """Questions with a mathematical answer."""

    name = "math"
    metric = "math"
    instructions = (
        "Solve the problem. Use the calculator for arithmetic. End with the final answer alone in \\boxed{...}."
    )

    @tool
    async def calculator(self, expression: Annotated[str, "for example 2/3 + 1/6"]) -> str:
        """Compute an expression exactly."""
        try:
            return str(_value(ast.parse(expression, mode="eval").body))
        except (SyntaxError, ZeroDivisionError) as error:
            raise ToolFailed(f"{expression!r} cannot be computed: {error}") from None

    async def score(
        self, item: Item, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        if not item.references:
            return None
        boxed = answer.rpartition("\\boxed{")[2].partition("}")[0].strip()
        return {"math": float(boxed in item.references)}


def _value(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            result: Fraction = _OPERATORS[type(sign)](_value(left), _value(right))
            return result
    raise ToolFailed("only numbers and + - * / are understood")
