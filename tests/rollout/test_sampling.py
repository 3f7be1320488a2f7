"""Settings of requests: flags, checks, the identity of a run, and what the endpoint receives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paragent import ConfigError, RolloutConfig
from paragent.cli import main
from paragent.models import Sampling
from paragent.models.credentials import ANTHROPIC_URL, endpoint_from_environment
from paragent.rollout.prepare import prepare
from paragent.testing import OpenAIServer, Script

TINY = "tests.rollout.test_rollouts:Tiny"
FLAGS = {
    "--temperature": "0.5",
    "--top-p": "0.9",
    "--seed": "7",
    "--max-reply-tokens": "99",
    "--reasoning-effort": "low",
    "--stop": "END",
    "--extra-body": '{"top_k": 20, "chat_template_kwargs": {"enable_thinking": false}}',
}
SENT = {
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "max_tokens": 99,
    "reasoning_effort": "low",
    "stop": ["END", "\n\n"],
    "top_k": 20,
    "chat_template_kwargs": {"enable_thinking": False},
    "min_p": 0.1,
    "return_token_ids": True,
    "logprobs": True,
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"id": "a", "question": "what is it?", "answer": "42"}) + "\n")
    return path


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "k")


def test_flags_are_sent_with_each_request_of_the_agent_and_not_with_those_of_a_judge(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rollout", "--env", TINY, "--data", str(data), "--model", "m", "--engine", "inline"]
    arguments += [part for flag in FLAGS.items() for part in flag]
    arguments += ["--stop", "\n\n", "--extra-body", '{"min_p": 0.1}', "--token-ids", "--metric", "llm_judge"]
    verdict = '{"reasoning": "yes", "correct": true}'
    replies = {"reference": verdict, "what is it?": "It is 42."}
    with OpenAIServer(Script(answers=replies, default=verdict), keep_requests=True) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert main([*arguments, "--output-dir", str(tmp_path / "results")]) == 0, capsys.readouterr().err
        agent, *judges = server.seen.bodies
    assert {name: value for name, value in agent.items() if name not in {"model", "messages", "tools"}} == SENT
    assert judges
    assert all(set(body) == {"model", "messages"} for body in judges)
    [stored] = (tmp_path / "results").glob("*/config.json")
    again = RolloutConfig(**json.loads(stored.read_text()))
    assert again.model.extra_body == {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1}
    assert again.model.stop == ["END", "\n\n"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": "3"}, "--temperature must be a number from 0 to 2, not 3.0"),
        ({"temperature": -0.1}, "--temperature must be a number from 0 to 2"),
        ({"temperature": "nan"}, "--temperature must be a finite number"),
        ({"top_p": 1.5}, "--top-p must be a number from 0 to 1"),
        ({"seed": "x"}, "--seed must be an integer"),
        ({"max_reply_tokens": 0}, "--max-reply-tokens must be an integer of at least 1"),
        ({"reasoning_effort": ""}, "--reasoning-effort must not be empty"),
        ({"stop": [""]}, "--stop must not be empty"),
        ({"extra_body": "top_k=20"}, r"--extra-body must be JSON, such as \{\"top_k\": 20\}"),
        ({"extra_body": "[1]"}, "--extra-body must be a JSON object"),
        ({"extra_body": 5}, "--extra-body must be a JSON object"),
        ({"extra_body": '{"a": NaN}'}, "NaN is not JSON"),
        ({"extra_body": {"a": {1, 2}}}, "--extra-body must be JSON"),
        ({"extra_body": {"stream": True, "model": "x"}}, "--extra-body must not have model, stream"),
        ({"api": "grpc"}, "--api must be one of"),
        ({"api": "responses", "stop": ["x"]}, "--stop is not supported by --api responses"),
        ({"api": "anthropic", "seed": 0}, "--seed is not supported by --api anthropic"),
        ({"api": "anthropic", "token_ids": True}, "--token-ids needs --api chat"),
    ],
)
def test_wrong_values_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RolloutConfig(mode="math", data="x.jsonl", **settings)


def test_settings_become_sampling_and_identity(data: Path) -> None:
    def plan(**settings: Any) -> Any:
        return prepare(RolloutConfig(mode="math", data=data, model="m", **settings))

    plain = plan()
    assert plain.settings.model.sampling == plain.settings.judge.sampling == Sampling()
    assert plain.identity == "d12764e501c9a0cc22bbea2713ea08bd", "runs of earlier versions are found again"
    chosen: list[dict[str, Any]] = [
        {"top_p": 0.5},
        {"seed": 0},
        {"reasoning_effort": "low"},
        {"stop": ["x"]},
        {"extra_body": {"top_k": 1}},
        {"token_ids": True},
        {"temperature": 0.0},
    ]
    assert len({plan(**one).identity for one in chosen} | {plain.identity}) == len(chosen) + 1
    tokens = plan(token_ids=True, extra_body={"logprobs": 2}).settings
    assert tokens.model.sampling == Sampling(extra_body={"return_token_ids": True, "logprobs": 2})
    assert tokens.judge.sampling == Sampling()


def test_the_protocol_decides_which_variables_are_read(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    config = RolloutConfig(mode="math", data=data, model="m", api="anthropic")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="set ANTHROPIC_API_KEY"):
        prepare(config)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "ak")
    assert endpoint_from_environment(tmp_path, "anthropic") == (ANTHROPIC_URL, "ak")
    assert endpoint_from_environment(tmp_path, "responses") == ("http://127.0.0.1:1/v1", "k")
