"""The environment: a shop in which an agent can ask for prices."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from paragent import BenchmarkTask, Environment, ToolFailed, tool

PRICES = {"apples": 0.50, "carrots": 0.15, "eggs": 0.30, "lemons": 0.60, "onions": 0.25, "pears": 0.70, "rolls": 0.40}


class Shop(Environment):
    """Questions about prices. One object serves one rollout."""

    name = "shop"
    metric = "right"  # which of the scores below counts
    instructions = "You work in a shop. Look up each price. End with a line `Answer: AMOUNT`, such as `Answer: 2.40`."

    @tool  # the model sees the docstring and the texts of the annotations
    async def price(self, item: Annotated[str, "what is sold, in the plural, such as apples"]) -> str:
        """Return the price of one piece."""
        if item not in PRICES:
            raise ToolFailed(f"no {item} are sold here; there are: {', '.join(PRICES)}")
        return f"{PRICES[item]:.2f}"

    async def score(
        self, task: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float]:
        """Return 1 if the last amount in the answer is that of the task, else 0."""
        amounts = re.findall(r"\d+\.\d\d", answer)
        return {"right": float(amounts[-1:] == [task.answer])}
