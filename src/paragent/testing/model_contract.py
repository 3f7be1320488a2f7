"""Contract suite for models: subclass it in a test file, name the class of the model, and run pytest.

::

    class TestMine(ModelContract):
        model = MyModel
        settings = ModelSettings(name="mine")
"""

from __future__ import annotations

import asyncio
import copy
import json
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from paragent.models import Completion, Model, ModelSettings

__all__ = ["ModelContract"]

Value = TypeVar("Value")
_SECONDS = 100.0
"""Seconds for one test."""


class ModelContract:
    """Tests that every model must pass."""

    model: ClassVar[type[Model]]
    """The class to test."""
    settings: ClassVar[ModelSettings]
    """Settings for its constructor."""
    messages: ClassVar[Sequence[dict[str, Any]]] = (
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": "What is 1/2 + 1/3?"},
    )
    """A conversation that the model can answer or continue with a tool call."""
    tools: ClassVar[Sequence[dict[str, Any]]] = (
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Compute an expression.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": {"type": "string"}},
                    "required": ["expression"],
                },
            },
        },
    )
    """Tools that are offered in requests."""

    def open(self) -> Model:
        """Return the model under test. Called within a running event loop."""
        return self.model(self.settings)

    def complete(self, times: int = 1) -> list[Completion]:
        """Return the completions of concurrent requests to one object."""

        async def ask() -> list[Completion]:
            model = self.open()
            try:
                requests = (model.complete(self.messages, self.tools) for _ in range(times))
                return list(await asyncio.gather(*requests))
            finally:
                await model.close()

        return _run(ask())

    def test_the_message_has_the_form_of_chat_completions(self) -> None:
        [completion] = self.complete()
        _check_message(completion.message)
        assert completion.finish_reason

    def test_usage_has_token_counts_or_is_none(self) -> None:
        [completion] = self.complete()
        if completion.usage is not None:
            assert {"prompt_tokens", "completion_tokens"} <= set(completion.usage)
            assert all(isinstance(count, int) and count >= 0 for count in completion.usage.values())

    def test_a_conversation_continues_after_tool_calls(self) -> None:
        async def converse() -> Completion:
            model = self.open()
            try:
                conversation = list(self.messages)
                completion = await model.complete(conversation, self.tools)
                conversation.append(completion.message)
                for call in completion.message.get("tool_calls") or ():
                    conversation.append({"role": "tool", "tool_call_id": call["id"], "content": "5/6"})
                if not completion.message.get("tool_calls"):
                    conversation.append({"role": "user", "content": "Are you sure?"})
                return await model.complete(conversation, self.tools)
            finally:
                await model.close()

        _check_message(_run(converse()).message)

    def test_it_answers_without_tools(self) -> None:
        async def ask() -> Completion:
            model = self.open()
            try:
                return await model.complete(self.messages, [])
            finally:
                await model.close()

        _check_message(_run(ask()).message)

    def test_a_request_of_an_agent_is_forwarded(self) -> None:
        from paragent.models.dialects import DIALECTS, ChatRequest

        async def forward() -> tuple[Model, Completion]:
            model = self.open()
            try:
                return model, await model.forward(body)
            finally:
                await model.close()

        dialect = DIALECTS[self.model.dialect]
        request = ChatRequest([dict(one) for one in self.messages], [dict(one) for one in self.tools], {})
        body = {"model": "the agent's", **dialect.write_request(request)}
        before = copy.deepcopy(body)
        model, completion = _run(forward())
        assert body == before, "the agent's request is not changed"
        _check_message(completion.message)
        if completion.response is not None:
            assert dialect.read_reply(completion.response).message == completion.message
        written = dialect.write_reply(completion, body)
        assert dialect.read_reply(written).message["content"] == completion.message["content"]
        assert model.dialect in DIALECTS

    def test_sampled_tokens_are_complete_or_missing(self) -> None:
        for completion in self.complete(2):
            assert completion.cached is False, "a reply outside of a rollout is a fresh sample"
            assert completion.version is None
            assert isinstance(completion.model, str)
            tokens = completion.tokens
            if tokens is not None:
                assert all(isinstance(one, int) for one in tokens.prompt_ids + tokens.ids)
                assert tokens.logprobs is None or len(tokens.logprobs) == len(tokens.ids)

    def test_messages_and_tools_are_not_modified(self) -> None:
        before = copy.deepcopy((self.messages, self.tools))
        self.complete()
        assert (self.messages, self.tools) == before

    def test_one_object_serves_concurrent_requests(self) -> None:
        for completion in self.complete(8):
            _check_message(completion.message)

    def test_a_cancelled_request_is_not_counted_as_in_flight(self) -> None:
        async def cancel() -> tuple[int, int]:
            model = self.open()
            try:
                request = asyncio.create_task(model.complete(self.messages, self.tools))
                await asyncio.sleep(0)
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
                _check_message((await model.complete(self.messages, self.tools)).message)
                return model.pressure()
            finally:
                await model.close()

        in_flight, limit = _run(cancel())
        assert in_flight == 0
        assert limit >= 0

    def test_close_is_idempotent(self) -> None:
        async def close() -> None:
            model = self.open()
            await model.close()
            await model.close()

        _run(close())

    def test_the_key_is_not_shown(self) -> None:
        if self.settings.api_key:
            assert self.settings.api_key not in repr(self.settings)


def _check_message(message: dict[str, Any]) -> None:
    json.dumps(message)
    assert message["role"] == "assistant"
    assert message["content"] is None or isinstance(message["content"], str)
    for call in message.get("tool_calls") or ():
        assert call["type"] == "function"
        assert isinstance(call["id"], str)
        assert isinstance(call["function"]["name"], str)
        assert isinstance(call["function"]["arguments"], str)


def _run(coroutine: Coroutine[Any, Any, Value]) -> Value:
    return asyncio.run(asyncio.wait_for(coroutine, _SECONDS))
