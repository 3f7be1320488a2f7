"""A handler of the gateway for tests: records the requests and answers them by a function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from paragent.models.base import Completion
from paragent.models.dialects import DIALECTS

__all__ = ["ScriptedHandler"]


class ScriptedHandler:
    """Answers with a text, or with what `answer` returns or raises."""

    model_name = "scripted"

    def __init__(self, answer: str | Callable[[dict[str, Any]], Awaitable[str]] = "42") -> None:
        self._answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.cancelled = 0
        self.called = asyncio.Event()

    async def forward(self, dialect: str, body: dict[str, Any]) -> Mapping[str, Any]:
        self.bodies.append(body)
        self.called.set()
        try:
            text = self._answer if isinstance(self._answer, str) else await self._answer(body)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        usage = {"prompt_tokens": 3, "completion_tokens": 1}
        completion = Completion({"role": "assistant", "content": text}, usage, model="scripted")
        return DIALECTS[dialect].write_reply(completion, body)
