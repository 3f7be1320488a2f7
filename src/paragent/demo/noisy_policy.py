"""The model `demo-noisy`: the policy `demo` with the delays, mistakes and failures of a real endpoint. It is not an LLM.

It shows, without an API key, what a run looks like: scores with intervals, retries, failures, a timeline. The temperature of
the run (`--temperature`, from 0 to 1; default: 0.5) is how noisy it is. Answers depend only on the question, the number of the
attempt and the temperature, so a run with the same settings has the same scores. Only failures that are retried differ.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import TYPE_CHECKING, Any

from paragent.demo.policy import UNKNOWN, DemoModel
from paragent.errors import EndpointDown, RequestRejected
from paragent.execution import doing
from paragent.models.base import Completion
from paragent.models.cache import request_scope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["NoisyDemoModel"]

_DEFAULT_TEMPERATURE = 0.5
_DELAYS = (0.3, 1.3)
"""Seconds until a reply."""
_STALL = 12.0
"""Seconds until a first reply that stalls: a hung endpoint is retried, too."""
_MALFORMED, _REJECTED, _DOWN, _STALLED = 0.4, 0.06, 0.05, 0.03
"""The fraction of rollouts, at temperature 1, with a malformed tool call, a rejected request, an endpoint that is down, and a
stalled reply. The fraction of wrong answers depends on the question."""
_ANSWER = re.compile(r"(\\boxed\{|Answer: )(-?\d+)?")


class NoisyDemoModel(DemoModel):
    """Replies as `DemoModel` does, after a delay, and with mistakes. The token counts are numbers of words.

    In one worker, a rollout has at most one failure that is retried: after three in a row, its result would be missing.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._failed: set[str] = set()
        """The rollouts that have had a failure."""

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Answer by rules and chance.

        Raises:
            EndpointDown: chosen by chance, at most once for a rollout.
            RequestRejected: chosen by chance.
        """
        temperature = self.settings.sampling.temperature
        noise = _Noise(messages, _DEFAULT_TEMPERATURE if temperature is None else temperature)
        fails = (noise.down or noise.stalled) and noise.rollout not in self._failed
        if fails:
            self._failed.add(noise.rollout)
        doing("generating")
        await asyncio.sleep(_STALL if fails and noise.stalled else noise.delay)
        if fails and noise.down:
            raise EndpointDown("the scripted endpoint returned HTTP 503")
        if noise.rejected:
            raise RequestRejected("the scripted endpoint rejected the request (HTTP 400: content filter)")
        known = [*messages[: noise.first_reply], *messages[noise.first_reply + 2 :]] if noise.malformed else messages
        completion = await super().complete(known, tools, options)
        message = completion.message
        calls = message.get("tool_calls")
        if noise.malformed and noise.turn == 0 and calls:
            message["reasoning_content"] = "I need a tool for this."
            calls[0]["function"]["arguments"] = calls[0]["function"]["arguments"][:-2]  # no valid JSON
        elif calls:
            repeated = noise.malformed and noise.turn == 1
            message["reasoning_content"] = (
                "My call was malformed. I repeat it." if repeated else "I need a tool for this."
            )
        elif noise.wrong:
            message["content"] = _wrong(str(message["content"]))
        usage = {"prompt_tokens": _words([*messages, *tools]), "completion_tokens": _words([message])}
        return Completion(message, usage)


class _Noise:
    """What happens to one request of a rollout."""

    def __init__(self, messages: Sequence[Mapping[str, Any]], temperature: float) -> None:
        question = next((str(message["content"]) for message in messages if message.get("role") == "user"), "")
        scope = request_scope.get()
        self.rollout = f"{scope.attempt if scope else 1} {question}"
        roles = [message.get("role") for message in messages]
        self.turn = roles.count("assistant")
        self.first_reply = roles.index("assistant") if self.turn else len(roles)
        difficulty = random.Random(question).random()  # noqa: S311 - not a secret, as below
        chance = random.Random(f"{temperature} {self.rollout}")  # noqa: S311
        draws = [chance.random() for _ in range(3)]
        self.wrong = draws[0] < temperature * difficulty
        self.malformed = draws[1] < temperature * _MALFORMED
        self.rejected = self.turn > 0 and draws[2] < temperature * _REJECTED
        self.down = self.turn == 0 and random.random() < temperature * _DOWN  # noqa: S311
        self.stalled = self.turn == 0 and random.random() < temperature * _STALLED  # noqa: S311
        self.delay = random.Random(f"{self.turn} {self.rollout}").uniform(*_DELAYS)  # noqa: S311


def _wrong(answer: str) -> str:
    """Return the answer with another number, or that the policy does not know."""
    found = _ANSWER.search(answer)
    if found is None or found[2] is None:
        return UNKNOWN
    return f"{answer[: found.start(2)]}{int(found[2]) + 1}{answer[found.end(2) :]}"


def _words(parts: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(json.dumps(part).split()) for part in parts)
