"""Runs against endpoints that differ from OpenAI's: replies of other shapes, tool calls as text, odd headers, wrong addresses."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Annotated, Any

import pytest

from paragent import AgentBase, Environment, EnvironmentFailed, RolloutConfig, run_parallel_rollout, tool
from paragent.agents.chat import AgentResult
from paragent.cli.display import progress_line
from paragent.cli.tables import console, summary_table
from paragent.envs.rag import embedding
from paragent.rollout import session as running
from paragent.rollout.live_status import RolloutProgress
from paragent.runners.retry import RetryPolicy
from paragent.store import Journal, RolloutResult, RolloutStatus, Summary
from paragent.testing import Fault, OpenAIServer, Script

HERE = "tests.rollout.test_other_endpoints"
RIGHT = {"tool": "lookup", "arguments": {"word": "it"}}


class Words(Environment):
    """A tool that returns text from outside."""

    name = "words"
    metric = "contains"

    @tool
    async def lookup(self, word: Annotated[str, "what"]) -> str:
        """Look a word up."""
        word.encode()
        return f"{word} \ud800 is 42"


class Loose(AgentBase):
    """Returns an answer that no database takes."""

    async def run_episode(self, episode: Any) -> AgentResult:
        completion = await episode.complete()
        return AgentResult(completion.message["content"] + " \udfff")


class Muddled(AgentBase):
    """Has a bug that depends on the question."""

    async def run_episode(self, episode: Any) -> AgentResult:
        return AgentResult(episode.question + 42)


@dataclass
class Endpoint:
    """A folder for runs, and the address of the endpoint in the environment."""

    folder: Path
    patch: pytest.MonkeyPatch

    def run(self, url: str, questions: list[str], watch: Any = None, **settings: Any) -> Summary:
        data = self.folder / "tasks.jsonl"
        data.write_text("".join(json.dumps({"id": q, "question": q, "answer": "42"}) + "\n" for q in questions))
        self.patch.setenv("OPENAI_BASE_URL", url)
        self.patch.setenv("OPENAI_API_KEY", "k")
        chosen: dict[str, Any] = {"env": f"{HERE}:Words", "engine": "inline", "max_retries": 1, "model": "m"} | settings
        config = RolloutConfig(data=data, output_dir=self.folder / "results", run_name="run", **chosen)
        return run_parallel_rollout(config, watch)

    def plays(self) -> dict[str, RolloutResult]:
        with Journal(self.folder / "results" / "run" / "journal.sqlite", read_only=True) as journal:
            return {play.task: play for play in journal.results()}


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    monkeypatch.setattr(running, "RETRIES", RetryPolicy(pause=0.01))
    return Endpoint(tmp_path, monkeypatch)


READABLE = {
    "parts": {"message": {"content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "42"}]}},
    "number": {"message": {"content": 42}},
    "surrogate": {"message": {"content": "42 \ud800"}},
    "huge usage": {"content": "42", "usage": {"prompt_tokens": 2**70, "completion_tokens": 1}},
    "odd usage": {"content": "42", "usage": {"prompt_tokens": "many", "completion_tokens": [1]}},
    "usage as text": {"content": "42", "usage": "unknown"},
    "calls as strings": [
        {"message": {"tool_calls": [json.dumps({"name": "lookup", "arguments": {"word": "it"}})]}},
        "42",
    ],
    "surrogate in a call": [{"tool": "lookup", "arguments": '{"word": "\\ud800"}'}, "42"],
}


@pytest.mark.parametrize("stream", [False, True])
def test_replies_of_another_shape_are_read_and_what_cannot_be_read_fails_its_rollout_alone(
    endpoint: Endpoint, stream: bool
) -> None:
    script = Script(answers={**READABLE, "broken": {"body": {"choices": [{"message": "?"}]}}}, default="42")
    with OpenAIServer(script) as server:
        summary = endpoint.run(server.url, [*READABLE, "broken", "plain"], stream=stream)
    plays = endpoint.plays()
    assert {name: plays[name].score for name in (*READABLE, "plain")} == dict.fromkeys((*READABLE, "plain"), 1.0)
    assert (plays["broken"].status, plays["broken"].kind) == (RolloutStatus.INFRASTRUCTURE, "endpoint")
    assert "not a chat completion" in plays["broken"].error or "chunk" in plays["broken"].error
    assert (summary.done, summary.pending) == (len(READABLE) + 2, 1)


def test_a_run_with_lone_surrogates_everywhere_ends_and_can_be_continued(endpoint: Endpoint) -> None:
    questions = ["plain", "lone \ud800", "other"]
    with OpenAIServer(Script(default="42")) as server:
        for _ in range(2):
            summary = endpoint.run(server.url, questions, agent=f"{HERE}:Loose")
            assert (summary.mean, summary.pending) == (1.0, 0)
    assert sorted(endpoint.plays()) == ["lone \ufffd", "other", "plain"]


def test_a_message_that_the_client_cannot_encode_is_sent_without_lone_surrogates(endpoint: Endpoint) -> None:
    with OpenAIServer(Script(default=[RIGHT, "42"]), keep_requests=True) as server:
        summary = endpoint.run(server.url, ["what?"], agent=f"{HERE}:Quoting")
        told = server.seen.bodies[0]["messages"][0]["content"]
    assert (summary.mean, told) == (1.0, "quoted \ufffd")


class Quoting(AgentBase):
    """Sends a lone surrogate of its own."""

    async def run_episode(self, episode: Any) -> AgentResult:
        episode.messages.append({"role": "user", "content": "quoted \ud800"})
        while calls := (await episode.complete()).message.get("tool_calls"):
            await episode.answer_calls(calls)
        return AgentResult(episode.messages[-1]["content"])


@pytest.mark.parametrize("header", ["1e9", "-5", "nan", "inf", "soon", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_time_to_wait_that_cannot_be_meant_does_not_stop_a_run(endpoint: Endpoint, header: str) -> None:
    with OpenAIServer(Script(default="42", faults=[Fault(429, last=1, retry_after=header)])) as server:
        began = time.monotonic()
        summary = endpoint.run(server.url, ["a", "b"])
        assert (summary.mean, summary.pending) == (1.0, 0)
        assert time.monotonic() - began < 60


def test_a_refused_connection_is_named_with_the_endpoint(endpoint: Endpoint) -> None:
    summary = endpoint.run("http://127.0.0.1:1/v1", ["a"], max_retries=0)
    [play] = endpoint.plays().values()
    assert "http://127.0.0.1:1/v1" in play.error
    assert "ConnectionRefusedError" in play.error
    assert "timed out" not in play.error
    assert "ConnectionRefusedError" in summary.reasons["endpoint"]


@contextlib.contextmanager
def https_server(folder: Path) -> Iterator[str]:
    """A server with a certificate that it signed itself."""
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*make, *files, "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    class Silent(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Silent) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"https://localhost:{server.server_port}/v1"
        server.shutdown()
        thread.join(10)


def test_a_certificate_that_is_not_trusted_is_named_and_stops_the_run(endpoint: Endpoint, tmp_path: Path) -> None:
    with https_server(tmp_path) as url:
        endpoint.run(url, ["a", "b"], num_rollouts=1)
    plays = endpoint.plays()
    assert len(plays) == 1, "the first rollout stops the run"
    assert "self-signed certificate" in plays["a"].error
    assert url in plays["a"].error
    assert "timed out" not in plays["a"].error


def test_the_display_says_what_is_waited_for(endpoint: Endpoint) -> None:
    seen: list[str] = []

    def watch(tally: RolloutProgress) -> None:
        seen.append(progress_line(tally))

    with OpenAIServer(Script(default="42", faults=[Fault(429, last=1, retry_after=2.5)])) as server:
        endpoint.run(server.url, ["a", "b"], watch, num_rollouts=2)
        host = f"127.0.0.1:{server.port}"
    assert any(f"after 429 from {host} in 0:0" in text for text in seen), seen


def test_the_summary_has_the_message_of_a_failure(endpoint: Endpoint) -> None:
    with OpenAIServer(Script()) as server:
        summary = endpoint.run(server.url, ["a", "b"], agent=f"{HERE}:Muddled")
    assert summary.failures == {"TypeError": 2}
    shown = console()
    with shown.capture() as captured:
        shown.print(summary_table("run", summary))
    assert "2: can only concatenate str" in captured.get()


TEXT_CALL = '<tool_call>\n{"name": "lookup", "arguments": {"word": "it"}}\n</tool_call>'


def test_a_server_that_rejects_tools_is_quoted_with_advice(endpoint: Endpoint) -> None:
    with OpenAIServer(Script(default="42", rejects_tools=True)) as server:
        endpoint.run(server.url, ["a", "b"])
    errors = {play.error.partition("\n")[0] for play in endpoint.plays().values()}
    assert len(errors) == 1, "the same cause has the same text"
    [error] = errors
    assert "tools are not supported by this model" in error
    assert "--tool-format text" in error


def test_tool_calls_that_come_as_text_are_detected_and_the_setting_is_named(endpoint: Endpoint) -> None:
    with OpenAIServer(Script(default=[TEXT_CALL, "42"])) as server:
        endpoint.run(server.url, ["a"])
    [play] = endpoint.plays().values()
    assert (play.status, play.kind) == (RolloutStatus.FAILED, "ToolsUnsupported")
    assert "--tool-format text" in play.error
    assert play.requests == 1, "the reply was paid for"
    assert play.completion_tokens


BILLED = {"prompt_tokens": 100, "completion_tokens": 10}


@pytest.mark.parametrize("stream", [False, True])
def test_malformed_replies_that_were_asked_for_again_are_counted(endpoint: Endpoint, stream: bool) -> None:
    broken = {"body": {"choices": [{"message": "?", "delta": "?"}], "usage": BILLED}}
    with OpenAIServer(Script(default=broken)) as server:
        summary = endpoint.run(server.url, ["a"], stream=stream, max_retries=1)
        assert summary.requests == server.seen.requests > 1
    assert summary.pending == 1
    assert (summary.prompt_tokens, summary.completion_tokens) == (100 * summary.requests, 10 * summary.requests)


@pytest.mark.parametrize("judge", [None, "other"])
@pytest.mark.parametrize("priced", [("m",), ("m", "other")], ids=str)
def test_tokens_of_a_judge_are_counted_and_priced_as_its_own(
    judge: str | None, priced: tuple[str, ...], endpoint: Endpoint
) -> None:
    prices = {"m": {"input": 1.0, "output": 2.0}, "other": {"input": 10.0, "output": 20.0}}
    file = endpoint.folder / "prices.json"
    file.write_text(json.dumps({name: prices[name] for name in priced}))
    verdict = {"content": '{"reasoning": "same", "correct": true}', "usage": BILLED}
    answer = {"content": "42", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    with OpenAIServer(Script(answers={'"references"': verdict}, default=answer)) as server:
        summary = endpoint.run(server.url, ["a"], metric="llm_judge", judge_model=judge, prices=file)
    assert (summary.mean, summary.requests) == (1.0, 2)
    assert (summary.prompt_tokens, summary.completion_tokens) == (107, 13)
    [play] = endpoint.plays().values()
    assert (play.judge_prompt_tokens, play.judge_completion_tokens) == ((100, 10) if judge else (0, 0))
    if judge is None:
        assert summary.cost == pytest.approx((107 * 1.0 + 13 * 2.0) / 1e6)
    elif "other" in priced:
        assert summary.cost == pytest.approx((7 * 1.0 + 3 * 2.0 + 100 * 10.0 + 10 * 20.0) / 1e6)
    else:
        assert summary.cost is None, "the price of the judge is unknown"


def test_with_tools_as_text_a_model_without_tool_support_plays(endpoint: Endpoint) -> None:
    script = Script(default=[f"Let me see.\n{TEXT_CALL}", "It is 42."], rejects_tools=True)
    with OpenAIServer(script, keep_requests=True) as server:
        summary = endpoint.run(server.url, ["a"], tool_format="text")
        first, second = (body["messages"] for body in server.seen.bodies)
    assert summary.mean == 1.0
    [play] = endpoint.plays().values()
    assert (play.turns, play.tool_calls) == (2, 1)
    assert "lookup" in first[0]["content"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert TEXT_CALL in second[2]["content"]
    assert second[3]["content"] == "<tool_response>\nit \ufffd is 42\n</tool_response>"


def test_an_endpoint_that_gives_no_embeddings_is_named_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setattr(embedding, "_TRIES", 0)
    embedder = embedding.Embedder("m")
    try:
        with pytest.raises(EnvironmentFailed, match=r"127\.0\.0\.1:1/v1.*refused"):
            embedder.embed(["a"])
    finally:
        embedder.close()
