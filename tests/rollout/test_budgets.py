"""Budgets: the decision, the messages, and runs that continue with a higher budget."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent import AgentBase, AgentResult, ConfigError, Environment, RolloutConfig
from paragent.cli import main
from paragent.rollout.budgets import Budgets
from paragent.rollout.live_status import TokenUsage
from paragent.store import Journal
from paragent.testing import OpenAIServer, Script

HERE = "tests.rollout.test_budgets"
PRICES = {"model": {"input": 2.0, "output": 8.0}, "judge": {"input": 1.0, "output": 1.0}}


class Plain(Environment):
    """Has no tools."""

    name = "plain"
    metric = "contains"


class Silent(AgentBase):
    """Uses a client of its own, so that the number of its tokens is unknown."""

    async def run_episode(self, episode: Any) -> AgentResult:
        async def thinking() -> dict[str, Any]:
            return {"role": "assistant", "content": "42"}

        await episode.take(thinking())
        return AgentResult("42")


# --- the decision ---------------------------------------------------------------------------------------------------------

counts = st.integers(0, 10**9)
usages = st.builds(TokenUsage, st.none() | counts, st.none() | counts, st.just(0), st.just(0))
limits = st.none() | st.integers(1, 10**9)


@given(usages, st.floats(0, 1e6), limits, limits, limits)
def test_a_budget_is_used_up_when_its_limit_is_reached_or_its_use_is_unknown(
    usage: TokenUsage, seconds: float, cost: int | None, tokens: int | None, time: int | None
) -> None:
    budgets = Budgets(cost, tokens, time, PRICES)
    used_up = budgets.used_up(usage, seconds)
    known = usage.prompt is not None and usage.completion is not None
    spent = ((usage.prompt or 0) * 2.0 + (usage.completion or 0) * 8.0) / 1e6
    reached = {
        "cost": cost is not None and (not known or spent >= cost),
        "tokens": tokens is not None and (not known or (usage.total or 0) >= tokens),
        "time": time is not None and seconds >= time,
    }
    assert (used_up is not None) == any(reached.values())
    if used_up is not None:
        assert reached[used_up.name]


@given(usages, usages, limits)
def test_using_more_never_makes_a_budget_available_again(a: TokenUsage, b: TokenUsage, tokens: int | None) -> None:
    budgets = Budgets(tokens=tokens)
    if budgets.used_up(a, 0.0) is not None:
        assert budgets.used_up(a + b, 0.0) is not None
    assert (a + b).total == (b + a).total


def test_a_judge_has_its_own_price() -> None:
    budgets = Budgets(prices=PRICES)
    usage = TokenUsage(3_000_000, 1_000_000, judge_prompt=1_000_000, judge_completion=1_000_000)
    assert budgets.cost_so_far(usage) == 2 * 2.0 + 0 * 8.0 + 1.0 + 1.0


# --- settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400.0), ("2h", 7200.0), ("1h30m", 5400.0), ("45s", 45.0), ("1.5h", 5400.0), (60, 60.0)],
)
def test_durations_have_units(text: Any, seconds: float) -> None:
    config = RolloutConfig(max_time=text, timeout=text)
    assert (config.run.max_time, config.run.timeout) == (seconds, seconds)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_time": "soon"}, "--max-time must be a number"),
        ({"max_time": "0h"}, "--max-time must be a number of seconds above 0"),
        ({"max_time": "1m2h"}, "--max-time must be a number"),
        ({"max_cost": 0}, "--max-cost must be above 0"),
        ({"max_cost": "nan"}, "--max-cost must be a finite number"),
        ({"max_tokens": 0}, "--max-tokens must be an integer of at least 1"),
        ({"at_limit": "explode"}, "--at-limit must be one of 'finish', 'cancel'"),
    ],
)
def test_wrong_budgets_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RolloutConfig(**settings)


# --- runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that builds the command line of a run of eight tasks."""
    monkeypatch.chdir(tmp_path)
    lines = (json.dumps({"id": f"t{n}", "question": "?", "answer": "42"}) for n in range(8))
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))

    def arguments(server: OpenAIServer, *more: str) -> list[str]:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        return [
            "rollout", "--env", f"{HERE}:Plain", "--data", "tasks.jsonl", "--engine", "inline", "--run-name", "run",
            "--model", "m", "--num-rollouts", "2", *more,
        ]  # fmt: skip

    return arguments


def executions() -> dict[str, int]:
    with Journal(Path("results/run/journal.sqlite"), read_only=True) as journal:
        return dict(journal.rows("SELECT task, count(*) FROM results GROUP BY task"))


def summary() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path("results/run/summary.json").read_text())
    return read


@pytest.mark.parametrize("at_limit", ["finish", "cancel"])
def test_results_that_are_not_recorded_yet_count(command: Any, at_limit: str) -> None:
    """The next rollout is dispatched before the result is recorded, so the budget must count the result before."""
    with OpenAIServer(Script(default="42")) as server:
        assert main(command(server, "--num-rollouts", "1", "--max-tokens", "2", "--at-limit", at_limit)) == 1
        assert server.seen.requests == 1, "a rollout uses two tokens"
    assert executions() == {"t0": 1}


def test_a_run_stops_at_its_budget_and_the_printed_command_continues_it(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sessions execute each rollout exactly once."""
    with OpenAIServer(Script(default="42")) as server:
        arguments = command(server, "--max-tokens", "6")  # a rollout uses two tokens
        assert main(arguments) == 1
        said = capsys.readouterr().err
        first = summary()
        assert 3 <= first["done"] < 8
        assert 6 <= first["prompt_tokens"] + first["completion_tokens"] <= 6 + 2 * 2
        used = first["prompt_tokens"] + first["completion_tokens"]
        assert f"the budget of --max-tokens is used up: tokens {used} of 6" in said, (
            "with the rollouts under way at the limit"
        )
        assert f"{first['pending']} rollouts without a result" in said
        _, _, again = said.partition("To continue with a higher budget:\n")
        continuing = shlex.split(again.splitlines()[0])
        assert continuing[0] == "paragent"
        assert continuing[-2] == "--max-tokens"
        assert main(arguments) == 1, "the budget counts all sessions"
        assert summary()["done"] == first["done"]
        while main(continuing[1:]) == 1:
            said = capsys.readouterr().err
            continuing = shlex.split(said.partition("To continue with a higher budget:\n")[2].splitlines()[0])
    assert executions() == {f"t{n}": 1 for n in range(8)}


def test_running_rollouts_are_cancelled_at_the_limit_and_stay_pending(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(Script(default="42", latency=20.0)) as server:
        assert main(command(server, "--max-time", "0.5", "--at-limit", "cancel")) == 1
    assert "--max-time is used up" in capsys.readouterr().err
    assert (summary()["pending"], summary()["statuses"]["cancelled"]) == (8, 0)


def test_the_cost_needs_prices(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OpenAIServer(Script(default="42")) as server:
        assert main(command(server, "--max-cost", "1")) == 2
        assert "--max-cost needs the price of m: add --prices FILE" in capsys.readouterr().err
        assert not Path("results").exists()
        (tmp_path / "prices.json").write_text(json.dumps({"m": {"input": 500_000, "output": 500_000}}))
        assert main(command(server, "--max-cost", "3", "--prices", "prices.json")) == 1
    assert "the budget of --max-cost is used up: cost " in capsys.readouterr().err
    assert summary()["cost"] >= 3.0


def test_a_budget_of_tokens_stops_a_run_whose_tokens_are_unknown(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(Script(default="42")) as server:
        assert main(command(server, "--agent", f"{HERE}:Silent", "--max-tokens", "1000000")) == 1
    said = capsys.readouterr().err
    assert "--max-tokens cannot be checked: the endpoint or the agent does not report its tokens" in said
    assert "--max-tokens" not in said.partition("To continue without this budget:\n")[2].splitlines()[0]
    assert 1 <= summary()["done"] < 8


def test_budgets_are_not_part_of_the_identity(command: Any) -> None:
    with OpenAIServer(Script(default="42")) as server:
        assert main(command(server, "--max-tokens", "100000", "--max-time", "1h")) == 0
        assert main(command(server, "--max-tokens", "200000", "--at-limit", "cancel")) == 0
