"""One rollout in progress: its conversation with environment and model, its trajectory and images."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from paragent._internal.text import well_formed
from paragent._internal.tracebacks import described
from paragent.envs import ToolResult
from paragent.errors import ContextFull, RequestRejected, TurnsUsedUp
from paragent.execution import doing, record_usage
from paragent.models.cache import RequestScope, request_scope
from paragent.models.tokens import TokenSequences, without_tokens
from paragent.rollout.branches import Branches
from paragent.rollout.gateway_tools import GatewayTools
from paragent.rollout.images import ImageStore, timestamp
from paragent.rollout.work_clock import WorkClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from paragent.envs import Environment, Tool, ToolSource
    from paragent.models import Completion, Model

__all__ = ["CLOSE_TIMEOUT", "OPEN_TIMEOUT", "RolloutEpisode", "current_episode", "recorded_fields"]

OPEN_TIMEOUT = 600.0
"""Seconds for an environment and MCP servers to open; they start programs, and prepare the desktop of a machine."""
CLOSE_TIMEOUT = 30.0
"""Seconds for an environment to close; a browser context or a sandbox takes one."""
_RECORDED = ("request_id", "usage", "waited", "retries", "finish_reason")
"""The fields of a `Completion` that are recorded with the step of a model call; its message is a message of the trajectory."""


class RolloutEpisode:
    """Implements `paragent.agents.chat.Episode` with an environment and a model.

    Args:
        environment: the environment.
        model: the model that `complete` asks.
        max_turns: the limit of turns.
        max_retries: the limit of retries of one request.
        clock: the clock of the rollout; None: a new one, which starts now.
        attempt: the number of the attempt at the task; the cache of replies tells attempts apart.
    """

    def __init__(
        self,
        environment: Environment,
        model: Model,
        max_turns: int,
        max_retries: int,
        clock: WorkClock | None = None,
        attempt: int = 1,
    ) -> None:
        self._environment = environment
        self._model = model
        self.instructions = environment.instructions
        self.question = ""
        self.tools: list[dict[str, Any]] = []
        self._sources: dict[str, ToolSource] = {}
        """By the name of the tool."""
        self.add_tools(environment)
        self.messages: list[dict[str, Any]] = []
        self.max_turns = max_turns
        self.max_retries = max_retries
        self.turns = 0
        self.requests = 0
        """Replies received from models, including those of a judge and those that could not be used."""
        self.cached_replies = 0
        """Replies from the cache; they are not requests."""
        self.tool_calls = 0
        self.usage: dict[str, int] | None = {"prompt_tokens": 0, "completion_tokens": 0}
        """None if the endpoint did not report tokens, or the agent used another client."""
        self.judge_usage = {"judge_prompt_tokens": 0, "judge_completion_tokens": 0}
        """The part of `usage` used by a judge that is a different model than the agent's."""
        self.steps: list[dict[str, Any]] = []
        self.ended = ""
        self.call_failure: Exception | None = None
        """The failure of the last call of the agent's model; None if it was answered: then an earlier one did no harm."""
        self.unanswered = 0.0
        """Seconds of work that the last call of the agent's model had taken when it was cut; 0 if it ended by itself."""
        self.refusal: Exception | None = None
        """Why the gateway refused a call: `TurnsUsedUp` or `ContextFull`."""
        self.tool_failure: Exception | None = None
        """The first failure of the environment, or of an MCP server, in a tool call through the gateway."""
        self._images = ImageStore(environment.images_shown)
        self._branches = Branches(self.messages, lambda given: self._images.move(given, self.turns))
        self._forwarded: tuple[dict[str, Any], ...] = ()
        """The last reply with a text that an agent got through the gateway."""
        self._tokens = TokenSequences()
        self._scope = RequestScope(attempt)
        self._gateway_tools = GatewayTools()
        self._turns_begun = 0
        """Turns that began; several may be in progress."""
        self._calls = 0
        self._clock = clock or WorkClock()
        self._started = time.monotonic() - self._clock.worked - self._clock.waited

    def add_tools(self, source: ToolSource) -> None:
        """Add the tools that it does not have yet, before the agent starts: those of MCP servers, and those of an environment
        that knows them only when it is open."""
        for tool in source.tools():
            if tool.name not in self._sources:
                self.tools.append(tool.as_openai())
                self._sources[tool.name] = source

    async def complete(self) -> Completion:
        """Request a completion and append its message."""
        await self._begin_turn()
        self._attach_first_images()
        sent = len(self.messages)
        requesting = self._model.complete(self._images.insert(self.messages), self.tools)
        completion = await self._recorded(requesting, "model", self._model, messages=sent)
        doing("working")
        self.turns += 1
        self.count_completion(self.model_name, completion)
        self._find_calls(completion.message)
        _complete_calls(completion.message, self.turns)
        self.messages.append(completion.message)
        return completion

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self._model.settings.name

    async def forward(self, dialect: str, body: dict[str, Any]) -> Mapping[str, Any]:
        """Answer a request of an agent that calls the gateway; see `GatewayHandler.forward`. It is a turn of the rollout."""
        from paragent.models.dialects import DIALECTS  # most rollouts do not use the gateway

        request = DIALECTS[dialect].read_request(body)
        own = dialect == self._model.dialect
        sent = body if own else DIALECTS[self._model.dialect].write_request(request)
        try:
            await self._begin_turn()
            branch, position = self._add_request(request.messages, request.tools), len(request.messages)
            facts = {"messages": position} | ({"branch": branch} if branch else {})
            completion = await self._recorded(self._model.forward(sent), "model", self._model, **facts)
        except (TurnsUsedUp, ContextFull) as error:
            self.refusal = error
            raise
        doing("working")
        self.turns += 1
        self.count_completion(self.model_name, completion)
        _complete_calls(completion.message, self.turns)
        if completion.message.get("content"):
            self._forwarded = (completion.message,)
        if branch := self._branches.add_reply(branch, position, completion.message):
            self.steps[-1]["branch"] = branch
        if own and isinstance(completion.response, dict):
            return completion.response
        return DIALECTS[dialect].write_reply(completion, body)

    def _add_request(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
        """Record the messages and tools of a request and return the number of its branch."""
        self._gateway_tools.add_request(messages, tools)
        self.tool_calls = self._gateway_tools.calls
        return self._branches.add(messages)

    async def ask_judge(self, model: Model, messages: list[dict[str, Any]]) -> Completion:
        """Request a completion of a judge; it is a step of the trajectory, but no message."""
        return await self._recorded(model.complete(messages, []), "judge", model, messages=0, request=messages)

    async def _recorded(self, requesting: Awaitable[Completion], kind: str, model: Model, **facts: Any) -> Completion:
        """Await a reply of a model and add the call as a step, also if it fails."""
        began, worked = time.monotonic(), self._clock.worked
        step: dict[str, Any] = {"kind": kind, "model": model.settings.name, **facts}
        request_scope.set(self._scope)
        try:
            completion = await requesting
        except BaseException as error:
            cut = isinstance(error, asyncio.CancelledError)
            step["error"] = "cancelled" if cut else described(error)
            if kind == "model":
                self.unanswered = self._clock.worked - worked if cut else 0.0
                self.call_failure = error if isinstance(error, Exception) else self.call_failure
            raise
        else:
            step |= recorded_fields(completion, model)
            if kind == "model":
                self.call_failure, self.unanswered = None, 0.0
                if completion.tokens is not None:
                    self._tokens.add(completion.tokens, len(self.steps), completion.version)
            return completion
        finally:
            turn = self.turns + 1 if kind == "model" else self.turns
            times = {"at": round(began - self._started, 4), "seconds": round(time.monotonic() - began, 4)}
            self.steps.append({"kind": kind, "turn": turn, **times, **step})

    async def take(self, thinking: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Await a message that the agent creates without `complete`, and append it."""
        try:
            await self._begin_turn()
        except TurnsUsedUp:
            if inspect.iscoroutine(thinking):
                thinking.close()  # it will not be awaited
            raise
        self.usage = None
        began = time.monotonic()
        message = await thinking
        doing("working")
        self.turns += 1
        _complete_calls(message, self.turns)
        self.messages.append(message)
        self._add_step("agent", began)
        return message

    @property
    def reply_was_cut(self) -> bool:
        """Whether the last reply of the model reached the limit of tokens."""
        replies = (step for step in reversed(self.steps) if step["kind"] == "model" and "finish_reason" in step)
        return next((step["finish_reason"] == "length" for step in replies), False)

    def last_answer(self) -> str:
        """Return the last text of the assistant, or an empty string."""
        replies = (message for message in reversed(self.messages) if message.get("role") == "assistant")
        texts = (message.get("content") for message in (*self._forwarded, *replies))
        return next((text for text in texts if isinstance(text, str) and text), "")

    async def observation(self) -> dict[str, Any]:
        """Return the current observation of the environment."""
        return await self._environment.observation()

    async def answer_calls(self, calls: Sequence[dict[str, Any]]) -> None:
        """Execute the tool calls of a turn and append their results; the environment decides whether they may overlap."""
        self.tool_calls += len(calls)
        results = await asyncio.gather(*(self._answer(call) for call in calls))
        doing("working")
        self.messages += results

    def served_tools(self) -> list[Tool]:
        """Return the tools for an agent that has its own loop."""
        return [tool for source in dict.fromkeys(self._sources.values()) for tool in source.tools()]

    async def serve_call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Execute a tool call of an agent that has its own loop; it is a step of the trajectory, with arguments and result.

        Raises:
            Exception: the environment or the MCP server failed; the rollout fails with this error.
        """
        if self.ended:
            return ToolResult(f"the rollout has ended ({self.ended}); no more tools can be called", error=True)
        try:
            self._gateway_tools.add_call(arguments)
        except RequestRejected as error:
            return ToolResult(str(error), error=True)
        began = time.monotonic()
        self._calls += 1
        self.tool_calls = self._gateway_tools.calls
        facts = {"name": name, "call": f"mcp_{self._calls}", "arguments": arguments}
        doing("acting", name)
        try:
            result = await self._sources.get(name, self._environment).call(name, arguments)
        except Exception as error:
            self.tool_failure = self.tool_failure or error
            self._add_step("tool", began, **facts, error=True, result=described(error))
            raise
        finally:
            doing("working")
        self.ended = self.ended or result.ends
        self._gateway_tools.add_result(result)
        images = self._images.add((*result.images, *result.kept), self._calls)
        shown = {"error": result.error, "extras": result.extras, "result": well_formed(result.text), "images": images}
        self._add_step("tool", began, **facts, **shown)
        return result

    def trajectory(self) -> dict[str, Any]:
        """Return the trajectory for the store."""
        sent = self._gateway_tools.sent
        tools = self.tools if sent is None else list(sent.values())
        trajectory: dict[str, Any] = {"messages": self.messages, "tools": tools, "steps": self.steps}
        if branches := self._branches.stored():
            trajectory["branches"] = branches
        if tokens := self._tokens.stored():
            trajectory["tokens"] = tokens
        return trajectory

    def files(self) -> dict[str, bytes]:
        """Return the images and the environment's files by name; complete when the environment is closed."""
        self._attach_first_images()
        self._images.add_files(self._environment.files)
        return self._images.files

    def count_completion(self, model: str, completion: Completion) -> None:
        """Count a reply of a model and its tokens; a reply from the cache has cost none."""
        if completion.cached:
            self.cached_replies += 1
            record_usage(cached_replies=1)
        else:
            self.count(model, completion.usage)

    def count(self, model: str, usage: dict[str, int] | None) -> None:
        """Count a reply of a model and its tokens."""
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

    def _attach_first_images(self) -> None:
        """Attach the images of the start to the first user message."""
        environment = self._environment
        first = next((message for message in self.messages if message.get("role") == "user"), None)
        if first is None or not (environment.first_images or environment.first_kept):
            return
        _attach(first, "images", self._images.add(environment.first_images, 0))
        _attach(first, "kept", self._images.add(environment.first_kept, 0))
        environment.first_images = environment.first_kept = ()

    async def _answer(self, call: dict[str, Any]) -> dict[str, Any]:
        began, moment = time.monotonic(), timestamp()
        self._calls += 1
        number = self._calls
        function = call["function"]
        doing("acting", function["name"])
        source = self._sources.get(function["name"], self._environment)
        result = await source.call(function["name"], function["arguments"])
        self.ended = self.ended or result.ends
        message = {"role": "tool", "tool_call_id": call["id"], "content": well_formed(result.text)}
        _attach(message, "images", self._images.add(result.images, number))
        _attach(message, "kept", self._images.add(result.kept, number))
        facts = {"name": function["name"], "call": call["id"], "error": result.error, "extras": result.extras}
        if "images" in message or "kept" in message:
            facts["moment"] = moment
        self._add_step("tool", began, **facts)
        return message

    def _find_calls(self, message: dict[str, Any]) -> None:
        """Add the tool calls that the environment finds in the text of a message without tool calls."""
        text = message.get("content")
        if isinstance(text, str) and not message.get("tool_calls"):
            found = self._environment.calls_in(text)
            functions = [{"name": name, "arguments": json.dumps(given)} for name, given in found]
            if functions:
                calls = enumerate(functions)
                message["tool_calls"] = [{"id": f"said_{self.turns}_{n}", "function": one} for n, one in calls]

    async def _begin_turn(self) -> None:
        if self._turns_begun >= self.max_turns:
            await asyncio.sleep(0)  # an agent that calls this in a loop must not block the event loop
            raise TurnsUsedUp(f"the rollout has used its {self.max_turns} turns (--max-turns)")
        self._turns_begun += 1

    def add_program(self, began: float, **facts: Any) -> None:
        """Record that a program ran as the agent, since `began` in the time of `time.monotonic`."""
        times = {"at": round(began - self._started, 4), "seconds": round(time.monotonic() - began, 4)}
        self.steps.append({"kind": "program", "turn": self.turns, **times, **facts})

    def _add_step(self, kind: str, began: float, **facts: Any) -> None:
        times = {"at": round(began - self._started, 4), "seconds": round(time.monotonic() - began, 4)}
        given = {name: value for name, value in facts.items() if value}
        self.steps.append({"kind": kind, "turn": self.turns, **times, **given})


current_episode: ContextVar[RolloutEpisode | None] = ContextVar("paragent_episode", default=None)
"""The episode whose code is running."""


def recorded_fields(completion: Completion, model: Model) -> dict[str, Any]:
    """Return what is recorded of a reply. Token ids are left out of the response: the trajectory has them in `tokens`."""
    step = {name: getattr(completion, name) for name in _RECORDED}
    response = completion.response
    step["response"] = response if completion.tokens is None else without_tokens(response)
    if completion.model and completion.model != model.settings.name:
        step["response_model"] = completion.model
    if completion.cached:
        step["cached"] = True
    if completion.version is not None:
        step["version"] = completion.version
    return step


def _attach(message: dict[str, Any], key: str, names: list[str]) -> None:
    if names:
        message[key] = names


def _complete_calls(message: dict[str, Any], turn: int) -> None:
    """Give every tool call an id, a name and arguments, if the model left them out."""
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
