"""The client for OpenAI-compatible endpoints, against a scripted server: retries, limits, errors, credentials."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import BaseModel, Field

from paragent._internal.clock import ManualClock
from paragent.errors import ConfigError, ContextFull, EndpointDown, EndpointRefused, RequestRejected
from paragent.models import Completion, ModelSettings, open_model
from paragent.models.credentials import DEFAULT_URL, endpoint_from_environment, read_env_file
from paragent.models.rate_limit import Limiter
from paragent.models.retry import Backoff
from paragent.testing import Fault, OpenAIServer, Script

ASK = [{"role": "user", "content": "what is it?"}]


def ask(server: Any, count: int = 1, messages: Any = ASK, **settings: Any) -> list[Completion]:
    async def run() -> list[Completion]:
        chosen: dict[str, Any] = {
            "max_retries": 3,
            "max_concurrency": 4,
            "request_timeout": 10.0,
            "api_key": "k",
        } | settings
        model = open_model(ModelSettings(name="m", base_url=server.url, **chosen))
        try:
            return await asyncio.gather(*(model.complete(messages, []) for _ in range(count)))
        finally:
            await model.close()

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_text_and_token_counts(stream: bool) -> None:
    with OpenAIServer(Script(default="forty-two it is")) as server:
        [completion] = ask(server, stream=stream)
    assert completion.message == {"role": "assistant", "content": "forty-two it is"}
    assert completion.usage == {"prompt_tokens": 4, "completion_tokens": 5}


REASONED = {"role": "assistant", "content": "42", "reasoning_content": "What is six times seven? It is 42."}
DETAILED = {
    "prompt_tokens": 10,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 6},
    "completion_tokens_details": {"reasoning_tokens": 5},
}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_reasoning_and_the_whole_reply_are_kept(stream: bool, name: str) -> None:
    sent = {"role": "assistant", "content": "42", name: REASONED["reasoning_content"]}
    with OpenAIServer(Script(default={"message": sent, "usage": DETAILED}, request_ids=True)) as server:
        [completion] = ask(server, stream=stream)
    assert completion.message == sent
    assert completion.model == "m"
    assert completion.usage == {
        "prompt_tokens": 10,
        "completion_tokens": 8,
        "cached_tokens": 6,
        "reasoning_tokens": 5,
    }
    reply = completion.response
    assert completion.request_id == f"req-{reply['id']}"
    assert (reply["model"], reply["usage"], reply["choices"][0]["message"]) == ("m", DETAILED, sent)
    assert reply["choices"][0]["finish_reason"] == completion.finish_reason == "stop"
    assert (completion.retries, completion.waited) == (0, 0.0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_id_of_a_reply_stands_for_a_missing_request_id(stream: bool) -> None:
    with OpenAIServer(Script()) as server:
        [completion] = ask(server, stream=stream)
    assert completion.request_id == completion.response["id"]
    assert completion.request_id.startswith("chatcmpl-")


def test_retries_and_waits_are_counted() -> None:
    with OpenAIServer(Script(faults=[Fault(429, last=1, retry_after=0.1)])) as server:
        [completion] = ask(server)
    assert completion.retries == 1
    assert completion.waited >= 0.1
    with OpenAIServer(Script(latency=0.1)) as server:
        first, second = ask(server, 2, max_concurrency=1)
    assert (first.waited, first.retries, second.retries) == (0.0, 0, 0)
    assert second.waited >= 0.09


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_returned(stream: bool) -> None:
    calls = [{"tool": "f", "arguments": {"x": 1}}, {"tool": "g", "arguments": "{no json"}]
    with OpenAIServer(Script(default={"tools": calls})) as server:
        [completion] = ask(server, stream=stream)
    functions = [call["function"] for call in completion.message["tool_calls"]]
    assert functions == [{"name": "f", "arguments": '{"x": 1}'}, {"name": "g", "arguments": "{no json"}]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [500, 503, 0])
def test_errors_and_truncated_answers_are_retried(status: int, stream: bool) -> None:
    with OpenAIServer(Script(faults=[Fault(status, last=2)])) as server:
        [completion] = ask(server, stream=stream)
        assert completion.message["content"] == "42"
        assert server.seen.requests == 3


@pytest.mark.slow
def test_an_endpoint_that_always_fails_is_down() -> None:
    with OpenAIServer(Script(faults=[Fault(500)])) as server:
        with pytest.raises(EndpointDown, match="failed 2 times"):
            ask(server, max_retries=1)
        assert server.seen.requests == 2
    with pytest.raises(EndpointDown):
        ask(server, max_retries=0)


@pytest.mark.slow
def test_retry_after_applies_to_all_requests_and_lowers_concurrency() -> None:
    with OpenAIServer(Script(latency=0.02, faults=[Fault(429, last=4, retry_after=1.0)])) as server:
        began = time.monotonic()
        assert len(ask(server, count=8, answered=True)) == 8
        assert time.monotonic() - began >= 1.0
        assert server.seen.requests == 12
        assert server.seen.most_in_flight == 4


@pytest.mark.slow
def test_no_request_is_sent_during_the_retry_after_of_another() -> None:
    async def run(server: OpenAIServer) -> float:
        model = open_model(ModelSettings(name="m", base_url=server.url, api_key="k", max_concurrency=4))
        began = time.monotonic()
        try:
            first = asyncio.create_task(model.complete(ASK, []))
            while not server.seen.refused or model.pressure()[0]:  # until the refusal was received
                await asyncio.sleep(0.005)
            await model.complete(ASK, [])
            waited = time.monotonic() - began
            await first
        finally:
            await model.close()
        return waited

    with OpenAIServer(Script(faults=[Fault(429, last=1, retry_after=0.8)])) as server:
        assert asyncio.run(run(server)) >= 0.8
        assert server.seen.requests == 3


@pytest.mark.slow
def test_retry_after_of_an_error_is_honoured() -> None:
    with OpenAIServer(Script(faults=[Fault(503, last=1, retry_after=1.0)])) as server:
        began = time.monotonic()
        ask(server)
        assert time.monotonic() - began >= 1.0, "by itself it would wait 0.75 s at most"


@contextmanager
def fixed_endpoint(status: int, body: bytes) -> Iterator[SimpleNamespace]:
    """Serve the same response to every request. `requests` has the headers and the body of each."""
    requests: list[tuple[list[tuple[str, str]], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append((self.headers.items(), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}/v1", requests=requests)
        server.shutdown()
        thread.join(10)


@pytest.mark.parametrize("body", [b"{}", b'{"choices": []}', b"[1]", b"<html>"])
def test_a_malformed_reply_is_a_failure_of_the_endpoint(body: bytes) -> None:
    with fixed_endpoint(200, body) as server, pytest.raises(EndpointDown):
        ask(server, max_retries=0)


def test_headers_are_those_of_the_openai_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed requests are sent by the package itself."""
    custom = {"authorization": "Bearer other", "USER-AGENT": "mine", "x-stainless-lang": "none", "X-Extra": "1"}
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "\n".join(f"{name}: {value}" for name, value in custom.items()))
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    with fixed_endpoint(400, b"{}") as server:
        for stream in (False, True):
            with pytest.raises(RequestRejected):
                ask(server, stream=stream)
    own, expected = (
        sorted((name.lower(), value) for name, value in headers if name.lower() != "content-length")
        for headers, _ in server.requests
    )
    assert own == expected
    assert {(name.lower(), value) for name, value in custom.items()} <= set(own)
    assert len(own) == len(dict(own)), "no header is sent twice"


class Part(BaseModel):
    kind: str = Field(alias="type")
    text: str
    unset: int = 0


def test_bodies_are_encoded_as_by_the_openai_package() -> None:
    parts = [Part(type="text", text="caf\u00e9"), {"type": "date", "date": datetime(2026, 1, 2, tzinfo=UTC)}, (1, None)]
    message = ChatCompletionMessage(role="assistant", content="before")
    with fixed_endpoint(400, b"{}") as server:
        for stream in (False, True):
            with pytest.raises(RequestRejected):
                ask(server, stream=stream, messages=[message, {"role": "user", "content": parts}])
    own, expected = (json.loads(body) for _, body in server.requests)
    assert own["messages"] == expected["messages"]
    assert own["messages"][1]["content"][0] == {"type": "text", "text": "caf\u00e9"}


@pytest.mark.slow
@pytest.mark.parametrize("status", [408, 409])
def test_temporary_refusals_are_retried(status: int) -> None:
    with OpenAIServer(Script(faults=[Fault(status, last=1)])) as server:
        [completion] = ask(server)
        assert completion.message["content"] == "42"
        assert server.seen.requests == 2


@pytest.mark.slow
def test_a_request_over_its_timeout_is_retried() -> None:
    with OpenAIServer(Script(latency=30.0)) as server:
        with pytest.raises(EndpointDown, match="failed 2 times"):
            ask(server, max_retries=1, request_timeout=0.2)
        assert server.seen.requests == 2


def test_requests_wait_in_order_and_cancelled_requests_leave_the_queue() -> None:
    async def run(server: OpenAIServer) -> tuple[int, int]:
        model = open_model(ModelSettings(name="m", base_url=server.url, api_key="k", max_concurrency=1))
        try:
            async with asyncio.timeout(60):
                asks = [[{"role": "user", "content": str(number)}] for number in range(6)]
                tasks = [asyncio.create_task(model.complete(ask, [])) for ask in asks]
                while model.pressure()[0] == 0:
                    await asyncio.sleep(0.001)
                tasks[3].cancel()
                await asyncio.wait(tasks)
            return model.pressure()
        finally:
            await model.close()

    with OpenAIServer(Script(latency=0.02), keep_requests=True) as server:
        assert asyncio.run(run(server)) == (0, 1)
        assert [body["messages"][0]["content"] for body in server.seen.bodies] == ["0", "1", "2", "4", "5"]
        assert server.seen.most_in_flight == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_address_without_a_path_is_valid(stream: bool) -> None:
    async def run(url: str) -> Completion:
        model = open_model(ModelSettings(name="m", base_url=url, api_key="k", stream=stream, max_retries=0))
        try:
            return await model.complete(ASK, [])
        finally:
            await model.close()

    with OpenAIServer(Script(default="4")) as server:
        for url in (f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{server.port}/"):
            assert asyncio.run(run(url)).message["content"] == "4"


def test_final_errors_are_not_retried() -> None:
    for fault, error in (
        (Fault(401), EndpointRefused),
        (Fault(404), EndpointRefused),
        (Fault(429, code="insufficient_quota"), EndpointRefused),
        (Fault(400, code="context_length_exceeded"), ContextFull),
        (Fault(400, code="This model's maximum context length is 4096 tokens"), ContextFull),
        (Fault(400), RequestRejected),
    ):
        with OpenAIServer(Script(faults=[fault])) as server:
            with pytest.raises(error):
                ask(server)
            assert server.seen.requests == 1


PHRASE = "the maximum context length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"message": f"{PHRASE} is 4096"}}, ContextFull),
        ({"error": f"{PHRASE} is 4096"}, ContextFull),
        ({"message": f"{PHRASE} is 4096", "code": 400}, ContextFull),
        ({"detail": f"{PHRASE} is 4096"}, ContextFull),
        ({"error": {"message": "bad", "code": "context_length_exceeded"}}, ContextFull),
        ({"error": {"message": "bad", "param": PHRASE}}, RequestRejected),
        ({"error": {"message": "bad"}, "request": {"messages": [PHRASE]}}, RequestRejected),
        ({"detail": [{"loc": ["body"], "msg": "bad", "input": PHRASE}]}, RequestRejected),
    ],
)
def test_a_full_context_is_recognised_by_the_message_or_code_only(
    body: Any, error: type[Exception], stream: bool
) -> None:
    with fixed_endpoint(400, json.dumps(body).encode()) as server, pytest.raises(error):
        ask(server, stream=stream)


def test_a_key_that_cannot_be_encoded_is_rejected() -> None:
    with OpenAIServer(Script()) as server, pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        ask(server, api_key="k\u00e9y\u2026")


def test_a_missing_key_is_reported() -> None:
    with pytest.raises(ConfigError, match="--model demo"):
        open_model(ModelSettings(name="m"))


def test_no_request_is_admitted_while_the_endpoint_is_closed() -> None:
    clock = ManualClock()
    limiter = Limiter(4, clock)
    assert limiter.admit()
    limiter.throttled(30.0)
    limiter.leave()
    assert not limiter.admit()
    assert limiter.opens_in() == 30.0
    clock.advance(30.0)
    assert limiter.admit()


def test_pauses_grow_beyond_a_quota_window() -> None:
    backoff = Backoff(3, random.Random(1))
    pauses = [backoff.after_refusal(None) for _ in range(12)]
    assert max(pause for pause in pauses if pause is not None) > 60
    assert backoff.after_refusal(5.0) is None or backoff.waited < 2000
    lucky = [Backoff(3, random.Random(1)).after_refusal(None, general=False) for _ in range(12)]
    assert max(pause for pause in lucky if pause is not None) <= 1.5, "one refusal among many answers"
    assert [backoff.after_error() is None for _ in range(4)] == [False, False, False, True]


def test_endless_refusals_are_given_up() -> None:
    backoff = Backoff(3, random.Random(1))
    pauses = [backoff.after_refusal(45.0) for _ in range(60)]
    waited = [pause for pause in pauses if pause is not None]
    assert all(45.0 <= pause <= 46.0 for pause in waited), "never less than it asked for"
    assert pauses[-1] is None
    assert 1800 <= sum(waited) < 1900


def test_env_files_are_read_without_expansion(tmp_path: Any) -> None:
    path = tmp_path / ".env"
    path.write_text('# c\nexport A=1 # x\nB = \'two words\'\nC="q#r"\nD="key" # mine\nE=${HOME}\nnonsense\n')
    assert read_env_file(path) == {"A": "1", "B": "two words", "C": "q#r", "D": "key", "E": "${HOME}"}
    assert read_env_file(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("environment", "file", "found"),
    [
        (("http://e/v1", "ek"), ("http://f/v1", "fk"), ("http://e/v1", "ek")),
        (("http://e/v1", "ek"), ("http://f/v1", None), ("http://e/v1", "ek")),
        ((None, None), ("http://f/v1", "fk"), ("http://f/v1", "fk")),
        ((None, "ek"), (None, "fk"), (DEFAULT_URL, "ek")),
        ((None, None), (None, "fk"), (DEFAULT_URL, "fk")),
        (("http://e/v1", None), (None, None), ("http://e/v1", None)),
        ((None, "ek"), ("http://f/v1", None), None),
        ((None, "ek"), ("http://f/v1", "fk"), None),
        (("http://e/v1", None), (None, "fk"), None),
        (("http://e/v1", None), ("http://f/v1", "fk"), None),
        (("http://f/v1", None), ("http://f/v1", "fk"), ("http://f/v1", "fk")),
    ],
)
def test_key_and_address_come_from_one_source(
    environment: tuple[str | None, str | None],
    file: tuple[str | None, str | None],
    found: tuple[str, str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY")
    for name, value in zip(names, environment, strict=True):
        monkeypatch.setenv(name, value or "")
    (tmp_path / ".env").write_text(
        "".join(f"{name}={value}\n" for name, value in zip(names, file, strict=True) if value)
    )
    if found is not None:
        assert endpoint_from_environment(tmp_path) == found
        return
    with pytest.raises(ConfigError, match="from the same source"):
        endpoint_from_environment(tmp_path)


def test_requests_use_a_proxy_unless_the_host_is_excepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy gets the whole address; the scripted endpoint accepts that."""
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with OpenAIServer(Script(default="by proxy")) as proxy, OpenAIServer(Script(default="direct")) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        assert ask(server)[0].message["content"] == "by proxy"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert ask(server)[0].message["content"] == "direct"
