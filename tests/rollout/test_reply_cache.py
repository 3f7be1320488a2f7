"""Runs with `--cache`: a second run makes no requests, and attempts never share samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paragent import ConfigError, RolloutConfig, Summary, run_parallel_rollout
from paragent.cli import main
from paragent.rollout.prepare import prepare, prepare_without_tasks
from paragent.store import Journal
from paragent.testing import OpenAIServer, Script

TINY = "tests.rollout.test_rollouts:Tiny"
REPLIES = [{"tool": "calculator", "arguments": {"expression": "6*7"}}, "It is 42."]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    tasks = [{"id": f"t{number}", "question": f"what is {number}?", "answer": "42"} for number in range(3)]
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


def run(data: Path, name: str, **settings: Any) -> Summary:
    folder = data.parent
    chosen: dict[str, Any] = {"env": TINY, "data": data, "model": "m", "engine": "inline", "attempts": 2, "cache": True}
    chosen |= {"output_dir": folder / "results", "run_name": name, "cache_dir": folder / "cache"}
    return run_parallel_rollout(RolloutConfig(**chosen | settings))


def responses(data: Path, name: str) -> dict[tuple[str, int], list[str]]:
    """Return the ids of the replies of each rollout."""
    with Journal(data.parent / "results" / name / "journal.sqlite", read_only=True) as journal:
        found = {}
        for result in journal.results():
            steps = (journal.trajectory(result.number) or {})["steps"]
            found[result.task, result.attempt] = [step["response"]["id"] for step in steps if step["kind"] == "model"]
        return found


def test_a_second_run_makes_no_requests_and_has_the_same_answers(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"m": {"input": 1000000, "output": 1000000}}')
    with OpenAIServer(Script(default=REPLIES)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        first = run(data, "first", prices=prices)
        made = server.seen.requests
        second = run(data, "second", prices=prices, max_tokens=1, num_rollouts=1)
        assert server.seen.requests == made, "the second run makes no requests"
        third = run(data, "third", attempts=3, prices=prices)
        assert server.seen.requests > made, "a third attempt is a new sample"
    assert (first.mean, first.cached_replies, first.requests) == (1.0, 0, made)
    assert first.cost
    assert (second.mean, second.cached_replies, second.requests) == (1.0, made, 0)
    assert (second.prompt_tokens, second.completion_tokens, second.cost) == (0, 0, 0.0), "no budget is used"
    assert third.cached_replies == made
    one, other = responses(data, "first"), responses(data, "second")
    assert one == other
    assert len({reply for replies in one.values() for reply in replies}) == made, "no two attempts share a sample"
    capsys.readouterr()
    assert main(["show", str(tmp_path / "results/second")]) == 0
    assert f"{made} of {made} replies" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "results/second"), "t0"]) == 0
    shown = capsys.readouterr().out
    assert "from the cache" in shown
    assert "assistant (cached) It is 42." in shown


def test_replies_of_a_judge_are_cached(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = '{"reasoning": "yes", "correct": true}'
    with OpenAIServer(Script(answers={"reference": verdict}, default="It is 42.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        chosen: dict[str, Any] = {"metric": "llm_judge", "judge_model": "j"}
        first = run(data, "first", **chosen)
        made = server.seen.requests
        second = run(data, "second", **chosen)
        assert server.seen.requests == made
    assert (first.mean, first.requests) == (1.0, 12)
    assert (second.mean, second.cached_replies, second.judge_prompt_tokens) == (1.0, 12, 0)


def test_wrong_settings_are_rejected(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(ConfigError, match="--cache-dir is for runs with --cache"):
        RolloutConfig(mode="math", cache_dir="x")
    folder = data.parent / "damaged"
    folder.mkdir()
    (folder / "replies.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match="use another --cache-dir"):
        prepare(RolloutConfig(mode="math", data=data, model="m", cache=True, cache_dir=folder))
    with pytest.raises(ConfigError, match="training needs new samples"):
        prepare_without_tasks(RolloutConfig(mode="math", model="m", cache=True), ("http://x/v1", "k"))


def test_the_variable_with_the_folder_of_caches_does_not_turn_the_cache_on(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rollout", "--mode", "math", "--data", str(data), "--model", "demo", "--dry-run"]
    monkeypatch.setenv("PARAGENT_CACHE", str(data.parent / "user"))
    assert main(arguments) == 0, capsys.readouterr().err
    assert not (data.parent / "user" / "replies").exists()
    assert main([*arguments, "--cache"]) == 0, capsys.readouterr().err
    assert (data.parent / "user" / "replies").exists()


def test_the_cache_does_not_change_the_identity_of_a_run(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("PARAGENT_CACHE", str(data.parent / "user"))
    plain = prepare(RolloutConfig(mode="math", data=data, model="m"))
    cached = prepare(RolloutConfig(mode="math", data=data, model="m", cache=True))
    assert plain.identity == cached.identity
    assert cached.settings.model.cache == str((data.parent / "user" / "replies").resolve())
