"""The model contract for every model, and for a model as a third party would write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from paragent.demo.policy import DemoModel
from paragent.models import Completion, Model, ModelSettings, Sampling
from paragent.models.anthropic import AnthropicMessages
from paragent.models.openai import OpenAIChat
from paragent.models.responses import OpenAIResponses
from paragent.models.tokens import TOKEN_IDS
from paragent.testing import ModelContract, OpenAIServer, Script

REPLIES = {"1/2 + 1/3": [{"tool": "calculator", "arguments": {"expression": "1/2 + 1/3"}}, "It is 5/6."]}


class TestDemo(ModelContract):
    model = DemoModel
    settings = ModelSettings(name="demo")


class TestOpenAI(ModelContract):
    model: ClassVar[type[Model]] = OpenAIChat
    stream: ClassVar[bool] = False
    sampling: ClassVar[Sampling] = Sampling()

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        with OpenAIServer(Script(answers=REPLIES, latency=0.01)) as server:
            cls.settings = ModelSettings(
                name="m", base_url=server.url, api_key="a-secret-key", stream=cls.stream, sampling=cls.sampling
            )
            yield


class TestOpenAIStreaming(TestOpenAI):
    stream = True


class TestOpenAITokens(TestOpenAI):
    sampling = Sampling(extra_body=TOKEN_IDS)

    def test_token_ids_are_returned(self) -> None:
        [completion] = self.complete()
        assert completion.tokens is not None
        assert completion.tokens.prompt_ids
        assert completion.tokens.logprobs


class TestOpenAITokensStreaming(TestOpenAITokens):
    stream = True


class TestResponses(TestOpenAI):
    model = OpenAIResponses


class TestResponsesStreaming(TestResponses):
    stream = True


class TestAnthropic(TestOpenAI):
    model = AnthropicMessages


class TestAnthropicStreaming(TestAnthropic):
    stream = True


class Echo(Model):
    """The smallest model: repeats the last message."""

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None = None,
    ) -> Completion:
        del tools
        return Completion({"role": "assistant", "content": str(messages[-1]["content"])}, None)


class TestThirdParty(ModelContract):
    model = Echo
    settings = ModelSettings(name="echo", api_key="another-key")
