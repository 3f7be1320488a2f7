"""One rollout under way: the conversation, and a record of all that happens in it."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paragent._internal.text import well_formed
from paragent.errors import TurnsUsedUp
from paragent.messages import with_images
from paragent.tasks import doing, record_usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping, Sequence

    from paragent.envs import Environment
    from paragent.models import Completion, Model

__all__ = ["ImageStore", "RolloutEpisode", "stamp"]


def stamp() -> str:
    """Return this moment as OSWorld writes it into the names of files."""
    return f"{datetime.now(UTC):%Y%m%d@%H%M%S%f}"


class ImageStore:
    """Takes pictures in, names them after their step, and puts them into what the model is sent."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._names: dict[bytes, str] = {}
        self.files: dict[str, bytes] = {}
        """By the name of the file. The moment in it tells the plays of a rollout apart."""

    def add(self, pictures: Iterable[bytes], step: int) -> list[str]:
        """Keep pictures and return their names; a picture that is there already is not kept twice."""
        names = []
        for picture in pictures:
            digest = hashlib.sha256(picture).digest()
            if digest not in self._names:
                name = f"step_{step}_{stamp()}.png"
                self._names[digest], self.files[name] = name, picture
            names.append(self._names[digest])
        return names

    def add_files(self, files: Mapping[str, bytes]) -> None:
        """Keep files that are no pictures of a step."""
        for name, content in files.items():
            stem, dot, suffix = name.rpartition(".")
            self.files[f"{stem}_{stamp()}{dot}{suffix}"] = content

    def with_images(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the conversation as the model is sent it, with the last pictures in it."""
        return with_images(messages, self.files.__getitem__, self._shown) if self.files else list(messages)


class RolloutEpisode:
    """Implements `paragent.agents.session.Episode` over an environment and a model."""

    def __init__(self, environment: Environment, model: Model, max_turns: int, max_retries: int) -> None:
        self._environment = environment
        self._model = model
        self.instructions = environment.instructions
        self.question = ""
        self.tools = [tool.as_openai() for tool in environment.tools()]
        self.messages: list[dict[str, Any]] = []
        self.max_turns = max_turns
        self.max_retries = max_retries
        self.turns = 0
        self.requests = 0
        """Replies of models that came, those of a judge and those that could not be used included."""
        self.tool_calls = 0
        self.usage: dict[str, int] | None = {"prompt_tokens": 0, "completion_tokens": 0}
        """None as soon as the endpoint once did not say, or the agent asked somebody else."""
        self.judge_usage = {"judge_prompt_tokens": 0, "judge_completion_tokens": 0}
        """The part of `usage` that another model than the agent's used to score the answer."""
        self.steps: list[dict[str, Any]] = []
        self.ended = ""
        self._images = ImageStore(environment.images_shown)
        self._begun = 0
        """Turns that began; several may be under way."""
        self._calls = 0
        self._started = time.monotonic()

    async def complete(self) -> Completion:
        """Ask the model and append what it says."""
        await self._begin_turn()
        self._attach_first_images()
        began = time.monotonic()
        completion = await self._model.complete(self._images.with_images(self.messages), self.tools)
        self.turns += 1
        self.count(self._model.settings.name, completion.usage)
        self._find_calls(completion.message)
        _name_calls(completion.message, self.turns)
        self.messages.append(completion.message)
        self._step("model", began, usage=completion.usage, finish_reason=completion.finish_reason)
        return completion

    async def take(self, thinking: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Wait for a message of the agent's own and append it."""
        try:
            await self._begin_turn()
        except TurnsUsedUp:
            if inspect.iscoroutine(thinking):
                thinking.close()  # nobody will wait for it
            raise
        self.usage = None
        began = time.monotonic()
        message = await thinking
        self.turns += 1
        _name_calls(message, self.turns)
        self.messages.append(message)
        self._step("agent", began)
        return message

    def said_last(self) -> str:
        """Return the last text of the assistant; empty if there is none."""
        texts = (message.get("content") for message in reversed(self.messages) if message.get("role") == "assistant")
        return next((text for text in texts if isinstance(text, str) and text), "")

    async def observation(self) -> dict[str, Any]:
        """Return what the environment has to see."""
        return await self._environment.observation()

    async def answer_calls(self, calls: Sequence[dict[str, Any]]) -> None:
        """Perform the calls of a turn; the environment decides whether they may overlap."""
        self.tool_calls += len(calls)
        results = await asyncio.gather(*(self._answer(call) for call in calls))
        self.messages += results

    def trajectory(self) -> dict[str, Any]:
        """Return all that happened, for the store."""
        return {"messages": self.messages, "tools": self.tools, "steps": self.steps}

    def files(self) -> dict[str, bytes]:
        """Return the pictures and what the environment left, by the name of the file; complete when it is closed."""
        self._attach_first_images()
        self._images.add_files(self._environment.files)
        return self._images.files

    def _attach_first_images(self) -> None:
        """Put the pictures of the beginning to the first message of the user, whoever wrote it."""
        environment = self._environment
        first = next((message for message in self.messages if message.get("role") == "user"), None)
        if first is None or not (environment.first_images or environment.first_kept):
            return
        _attach(first, "images", self._images.add(environment.first_images, 0))
        _attach(first, "kept", self._images.add(environment.first_kept, 0))
        environment.first_images = environment.first_kept = ()

    async def _answer(self, call: dict[str, Any]) -> dict[str, Any]:
        began, moment = time.monotonic(), stamp()
        self._calls += 1
        number = self._calls
        function = call["function"]
        doing(function["name"])
        result = await self._environment.call(function["name"], function["arguments"])
        self.ended = self.ended or result.ends
        message = {"role": "tool", "tool_call_id": call["id"], "content": well_formed(result.text)}
        _attach(message, "images", self._images.add(result.images, number))
        _attach(message, "kept", self._images.add(result.kept, number))
        facts = {"name": function["name"], "call": call["id"], "error": result.error, "extras": result.extras}
        self._step("tool", began, **facts, **({"moment": moment} if "images" in message or "kept" in message else {}))
        return message

    def _find_calls(self, message: dict[str, Any]) -> None:
        """Take what a message says for a tool call, if the environment does."""
        text = message.get("content")
        if isinstance(text, str) and not message.get("tool_calls"):
            found = self._environment.calls_in(text)
            functions = [{"name": name, "arguments": json.dumps(given)} for name, given in found]
            if functions:
                calls = enumerate(functions)
                message["tool_calls"] = [{"id": f"said_{self.turns}_{n}", "function": one} for n, one in calls]

    async def _begin_turn(self) -> None:
        if self._begun >= self.max_turns:
            await asyncio.sleep(0)  # an agent that asks over and over must not keep the event loop from its time limit
            raise TurnsUsedUp(f"the rollout has had its {self.max_turns} turns (--max-turns)")
        self._begun += 1

    def count(self, model: str, usage: dict[str, int] | None) -> None:
        """Add a reply of a model to what the rollout used."""
        self.requests += 1
        record_usage(requests=1, unknown=usage is None, **(usage or {}))
        if usage is None or self.usage is None:
            self.usage = None
        else:
            for name, amount in usage.items():
                self.usage[name] = self.usage.get(name, 0) + amount
        if model != self._model.settings.name and usage is not None:
            judged = {name: usage.get(name.removeprefix("judge_"), 0) for name in self.judge_usage}
            record_usage(**judged)
            for name, amount in judged.items():
                self.judge_usage[name] += amount

    def _step(self, kind: str, began: float, **facts: Any) -> None:
        now = time.monotonic()
        shown = {name: value for name, value in facts.items() if value}
        self.steps.append(
            {
                "kind": kind,
                "turn": self.turns,
                "at": round(began - self._started, 4),
                "seconds": round(now - began, 4),
                **shown,
            }
        )


def _attach(message: dict[str, Any], key: str, names: list[str]) -> None:
    if names:
        message[key] = names


def _name_calls(message: dict[str, Any], turn: int) -> None:
    """Make every tool call one that can be answered: with an id, a name and arguments, whatever the model left out."""
    calls = message.get("tool_calls")
    if not calls:
        return
    message["tool_calls"] = [
        {
            "id": str(call.get("id") or f"call_{turn}_{index}"),
            "type": "function",
            "function": {
                "name": str((call.get("function") or {}).get("name") or ""),
                "arguments": (call.get("function") or {}).get("arguments") or "{}",
            },
        }
        for index, call in enumerate(calls)
    ]
