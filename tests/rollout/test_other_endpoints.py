"""Endpoints that differ from OpenAI's: unusual replies, tool calls as text, invalid headers, wrong addresses."""

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
from paragent.rollout import blame
from paragent.rollout.live_status import RolloutProgress
from paragent.runners.retry import RetryPolicy
from paragent.store import Journal, RolloutResult, RolloutStatus, Summary
from paragent.testing import Fault, OpenAIServer, Script

HERE = "tests.rollout.test_other_endpoints"
RIGHT = {"tool": "lookup", "arguments": {"word": "it"}}


class Words(Environment):
    """Has a tool that returns text with a lone surrogate."""

    name = "words"
    metric = "contains"

    @tool
    async def lookup(self, word: Annotated[str, "what"]) -> str:
        """Look a word up."""
        word.encode()
        return f"{word} \ud800 is 42"


class Loose(AgentBase):
    """Returns an answer with a lone surrogate."""

    async def run_episode(self, episode: Any) -> AgentResult:
        completion = await episode.complete()
        return AgentResult(completion.message["content"] + " \udfff")


class Muddled(AgentBase):
    """Has a bug that depends on the question."""

    async def run_episode(self, episode: Any) -> AgentResult:
        return AgentResult(episode.question + 42)


@dataclass
class Endpoint:
    """A folder for runs; sets the address of the endpoint."""

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

    def results(self) -> dict[str, RolloutResult]:
        with Journal(self.folder / "results" / "run" / "journal.sqlite", read_only=True) as journal:
            return {result.task: result for result in journal.results()}


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    monkeypatch.setattr(blame, "RETRIES", RetryPolicy(pause=0.01))
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


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_unusual_replies_are_parsed_and_unparsable_ones_fail_one_rollout(endpoint: Endpoint, stream: bool) -> None:
    script = Script(answers={**READABLE, "broken": {"body": {"choices": [{"message": "?"}]}}}, default="42")
    with OpenAIServer(script) as server:
        # One at a time: while others are answered, the request itself would be to blame.
        summary = endpoint.run(server.url, [*READABLE, "broken", "plain"], stream=stream, num_rollouts=1)
    results = endpoint.results()
    assert {name: results[name].score for name in (*READABLE, "plain")} == dict.fromkeys((*READABLE, "plain"), 1.0)
    assert (results["broken"].status, results["broken"].kind) == (RolloutStatus.INFRASTRUCTURE, "endpoint")
    assert "not a chat completion" in results["broken"].error or "chunk" in results["broken"].error
    assert (summary.done, summary.pending) == (len(READABLE) + 1, 1)


def test_lone_surrogates_do_not_stop_a_run(endpoint: Endpoint) -> None:
    questions = ["plain", "lone \ud800", "other"]
    with OpenAIServer(Script(default="42")) as server:
        for _ in range(2):
            summary = endpoint.run(server.url, questions, agent=f"{HERE}:Loose")
            assert (summary.mean, summary.pending) == (1.0, 0)
    assert sorted(endpoint.results()) == ["lone \ufffd", "other", "plain"]


def test_messages_are_sent_without_lone_surrogates(endpoint: Endpoint) -> None:
    with OpenAIServer(Script(default=[RIGHT, "42"]), keep_requests=True) as server:
        summary = endpoint.run(server.url, ["what?"], agent=f"{HERE}:Quoting")
        reported = server.seen.bodies[0]["messages"][0]["content"]
    assert (summary.mean, reported) == (1.0, "quoted \ufffd")


class Quoting(AgentBase):
    """Sends a message with a lone surrogate."""

    async def run_episode(self, episode: Any) -> AgentResult:
        episode.messages.append({"role": "user", "content": "quoted \ud800"})
        while calls := (await episode.complete()).message.get("tool_calls"):
            await episode.answer_calls(calls)
        return AgentResult(episode.messages[-1]["content"])


@pytest.mark.slow
@pytest.mark.parametrize("header", ["1e9", "-5", "nan", "inf", "soon", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_implausible_retry_after_values_are_ignored(endpoint: Endpoint, header: str) -> None:
    with OpenAIServer(Script(default="42", faults=[Fault(429, last=1, retry_after=header)])) as server:
        began = time.monotonic()
        summary = endpoint.run(server.url, ["a", "b"])
        assert (summary.mean, summary.pending) == (1.0, 0)
        assert time.monotonic() - began < 60


def test_a_refused_connection_names_the_endpoint(endpoint: Endpoint) -> None:
    summary = endpoint.run("http://127.0.0.1:1/v1", ["a"], max_retries=0)
    [result] = endpoint.results().values()
    assert "http://127.0.0.1:1/v1" in result.error
    assert "ConnectionRefusedError" in result.error
    assert "timed out" not in result.error
    [reason] = summary.reasons["endpoint"]
    assert "ConnectionRefusedError" in reason


@contextlib.contextmanager
def https_server(folder: Path) -> Iterator[str]:
    """A server with a self-signed certificate."""
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


def test_an_untrusted_certificate_stops_the_run(endpoint: Endpoint, tmp_path: Path) -> None:
    with https_server(tmp_path) as url:
        endpoint.run(url, ["a", "b"], num_rollouts=1)
    results = endpoint.results()
    assert len(results) == 1, "the first rollout stops the run"
    assert "self-signed certificate" in results["a"].error
    assert url in results["a"].error
    assert "timed out" not in results["a"].error


@pytest.mark.slow
def test_the_display_shows_the_reason_of_waits(endpoint: Endpoint) -> None:
    seen: list[str] = []

    def watch(progress: RolloutProgress) -> None:
        seen.append(progress_line(progress))

    with OpenAIServer(Script(default="42", faults=[Fault(429, last=1, retry_after=2.5)])) as server:
        endpoint.run(server.url, ["a", "b"], watch, num_rollouts=2)
        host = f"127.0.0.1:{server.port}"
    assert any(f"after 429 from {host} in 0:0" in text for text in seen), seen


def test_the_summary_has_the_message_of_each_failure_kind(endpoint: Endpoint) -> None:
    with OpenAIServer(Script()) as server:
        summary = endpoint.run(server.url, ["a", "b"], agent=f"{HERE}:Muddled")
    assert summary.failures == {"TypeError": 2}
    shown = console()
    with shown.capture() as captured:
        shown.print(summary_table(Path("run"), summary, "math"))
    assert "2: can only concatenate str" in captured.get()


TEXT_CALL = '<tool_call>\n{"name": "lookup", "arguments": {"word": "it"}}\n</tool_call>'


def test_a_server_that_rejects_tools_is_quoted(endpoint: Endpoint) -> None:
    with OpenAIServer(Script(default="42", rejects_tools=True)) as server:
        endpoint.run(server.url, ["a", "b"])
    errors = {result.error.partition("\n")[0] for result in endpoint.results().values()}
    assert len(errors) == 1, "the same cause has the same message"
    [error] = errors
    assert "tools are not supported by this model" in error
    assert "--tool-format text" in error


def test_tool_calls_as_text_are_detected(endpoint: Endpoint) -> None:
    with OpenAIServer(Script(default=[TEXT_CALL, "42"])) as server:
        endpoint.run(server.url, ["a"])
    [result] = endpoint.results().values()
    assert (result.status, result.kind) == (RolloutStatus.FAILED, "ToolsUnsupported")
    assert "--tool-format text" in result.error
    assert result.requests == 1, "the reply is counted"
    assert result.completion_tokens


BILLED = {"prompt_tokens": 100, "completion_tokens": 10}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_requests_with_malformed_replies_are_counted(endpoint: Endpoint, stream: bool) -> None:
    broken = {"body": {"choices": [{"message": "?", "delta": "?"}], "usage": BILLED}}
    with OpenAIServer(Script(default=broken)) as server:
        summary = endpoint.run(server.url, ["a"], stream=stream, max_retries=1)
        assert summary.requests == server.seen.requests > 1
    assert summary.pending == 1
    assert (summary.prompt_tokens, summary.completion_tokens) == (100 * summary.requests, 10 * summary.requests)


@pytest.mark.slow
@pytest.mark.parametrize("judge", [None, "other"])
@pytest.mark.parametrize("priced", [("m",), ("m", "other")], ids=str)
def test_tokens_of_a_judge_have_their_own_price(judge: str | None, priced: tuple[str, ...], endpoint: Endpoint) -> None:
    prices = {"m": {"input": 1.0, "output": 2.0}, "other": {"input": 10.0, "output": 20.0}}
    file = endpoint.folder / "prices.json"
    file.write_text(json.dumps({name: prices[name] for name in priced}))
    verdict = {"content": '{"reasoning": "same", "correct": true}', "usage": BILLED}
    answer = {"content": "42", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    with OpenAIServer(Script(answers={'"references"': verdict}, default=answer)) as server:
        summary = endpoint.run(server.url, ["a"], metric="llm_judge", judge_model=judge, prices=file)
    assert (summary.mean, summary.requests) == (1.0, 2)
    assert (summary.prompt_tokens, summary.completion_tokens) == (107, 13)
    [result] = endpoint.results().values()
    assert (result.judge_prompt_tokens, result.judge_completion_tokens) == ((100, 10) if judge else (0, 0))
    if judge is None:
        assert summary.cost == pytest.approx((107 * 1.0 + 13 * 2.0) / 1e6)
    elif "other" in priced:
        assert summary.cost == pytest.approx((7 * 1.0 + 3 * 2.0 + 100 * 10.0 + 10 * 20.0) / 1e6)
    else:
        assert summary.cost is None, "the price of the judge is unknown"


def test_tool_format_text_works_without_tool_support(endpoint: Endpoint) -> None:
    script = Script(default=[f"Let me see.\n{TEXT_CALL}", "It is 42."], rejects_tools=True)
    with OpenAIServer(script, keep_requests=True) as server:
        summary = endpoint.run(server.url, ["a"], tool_format="text")
        first, second = (body["messages"] for body in server.seen.bodies)
    assert summary.mean == 1.0
    [result] = endpoint.results().values()
    assert (result.turns, result.tool_calls) == (2, 1)
    assert "lookup" in first[0]["content"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert TEXT_CALL in second[2]["content"]
    assert second[3]["content"] == "<tool_response>\nit \ufffd is 42\n</tool_response>"


def test_an_endpoint_without_embeddings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setattr(embedding, "RETRIES", 0)
    embedder = embedding.Embedder("m")
    try:
        with pytest.raises(EnvironmentFailed, match=r"127\.0\.0\.1:1/v1.*refused"):
            embedder.embed(["a"])
    finally:
        embedder.close()
