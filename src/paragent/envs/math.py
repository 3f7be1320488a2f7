"""The environment `math`: an exact calculator; answers are scored by mathematical equality."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paragent._internal.registry import require
from paragent.envs.base import Environment
from paragent.envs.py.environment import PyEnvironment
from paragent.envs.tools import ToolFailed, ToolResult, tool
from paragent.scorers.math import Mathematics
from paragent.subprocesses import CallFailed, SubprocessPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.tasks import BenchmarkTask

require("sympy")

__all__ = ["MathEnvironment", "MathOptions"]

_LIMIT = 10.0
"""Seconds for one computation; most longer computations never end."""
_LONGEST = 10_000
"""Characters of an expression, and of a result that is shown."""
_CALCULATOR = "paragent.envs.calculator"


@dataclass(frozen=True, slots=True)
class MathOptions:
    """The options of the environment `math`."""

    python: Annotated[bool, "also offer a Python interpreter"] = False
    sandbox: Annotated[Literal["bubblewrap", "vm", "none"], "where Python code runs"] = "bubblewrap"


class MathEnvironment(Environment):
    """Questions with a mathematical answer. Tools: an exact calculator and, with the option `python`, an interpreter.

    Own score: `math`, whether the final answer is mathematically equal to a reference.
    """

    name = "math"
    metric = "math"
    needs_reference = True
    instructions = (
        "Solve the problem. Use the calculator instead of computing in your head; it is exact. "
        "End with the final answer alone in \\boxed{...}."
    )

    options_type = MathOptions
    options: MathOptions

    def __init__(self, options: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(options, **more)
        self._programs = PyEnvironment({"sandbox": self.options.sandbox}, shared=self.shared)
        self._cell = asyncio.Lock()
        """Serialises calls of the interpreter, which runs one cell at a time."""
        if not self.options.python:
            del self._tools["python"]

    @property
    def needs_machine(self) -> bool:
        return self.options.python and self._programs.needs_machine

    async def check(self) -> None:
        if self.options.python:
            await self._programs.check()

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        await self._programs.open(task, machine)
        return await super().open(task, machine)

    @tool
    async def python(
        self, code: Annotated[str, "Python source; the value of a last expression is shown"]
    ) -> ToolResult:
        """Run code in a Python interpreter that keeps its variables between calls. There is no network."""
        async with self._cell:
            return await self._programs.python(code)

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
        children = await self.shared.get(_CALCULATOR, lambda: SubprocessPool.running(_CALCULATOR))
        try:
            value = str(await children.call("compute", expression, limit=_LIMIT))
        except CallFailed as error:
            what = "the computation" if error.kind == "limit" else "this cannot be computed:"
            raise ToolFailed(f"{what} {error}") from None
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]} ... ({len(value)} characters in all)"

    async def score(
        self, task: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        scorer = await self.shared.get(Mathematics.name, Mathematics.running)
        score = await scorer.score(task, answer)
        self.score_note = score.note
        return None if score.value is None else {"math": score.value}

    async def close(self) -> None:
        await self._programs.close()
        await super().close()
