"""Ctrl-C at the worst moments of a rollout run: results that came are kept, once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paragent import Interrupted, RolloutConfig, run_parallel_rollout
from paragent.rollout.session import Session
from paragent.runners.run import Run
from paragent.store import Journal, RolloutResult
from paragent.tasks import TaskStatus

ROLLOUTS = "tests.rollout.test_rollouts"


def config(tmp_path: Path) -> RolloutConfig:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"id": f"t{i}", "question": "?", "answer": "42"}) + "\n" for i in range(8)))
    return RolloutConfig(
        env=f"{ROLLOUTS}:Tiny",
        agent=f"{ROLLOUTS}:Quick",
        data=data,
        model="demo",
        engine="inline",
        output_dir=tmp_path / "results",
        run_name="run",
        num_rollouts=3,
    )


def decided(tmp_path: Path) -> list[str]:
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        return [row[0] for row in journal.rows("SELECT task FROM plays WHERE decides = 1")]


@pytest.mark.parametrize("method", ["_feed", "_keep", "_tell", "_decide"])
def test_results_that_came_before_an_interrupt_are_kept(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C where a method begins that is called after the first results came."""
    came: set[str] = set()
    original, take = getattr(Session, method), Session._take

    def interrupted(self: Session, *arguments: Any) -> Any:
        if came:
            monkeypatch.setattr(Session, method, original)
            raise KeyboardInterrupt
        return original(self, *arguments)

    def noting(self: Session, run: Any) -> None:
        came.update(self._under_way[response.id].task for response in run.ready.values() if response.success)
        take(self, run)

    monkeypatch.setattr(Session, method, interrupted)
    monkeypatch.setattr(Session, "_take", noting)
    with pytest.raises(Interrupted):
        run_parallel_rollout(config(tmp_path))
    monkeypatch.setattr(Session, "_take", take)
    kept = decided(tmp_path)
    assert came
    assert came <= set(kept)
    summary = run_parallel_rollout(config(tmp_path))
    assert (summary.mean, summary.owed) == (1.0, 0)
    assert len(decided(tmp_path)) == len(set(decided(tmp_path))) == summary.done


def _as_the_command_does(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(params=["Ctrl-C", "Ctrl-C with a handler", "SIGTERM"])
def interrupt(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Return a function that sends this process a signal whose handler raises KeyboardInterrupt."""
    number = signal.SIGTERM if request.param == "SIGTERM" else signal.SIGINT
    handler = signal.default_int_handler if request.param == "Ctrl-C" else _as_the_command_does
    before = signal.signal(number, handler)
    yield lambda: os.kill(os.getpid(), number)
    assert signal.getsignal(number) is handler, "handlers are put back"
    signal.signal(number, before)


def test_an_interrupt_while_results_are_recorded_records_them_once(
    interrupt: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []
    pressed_at: list[int] = []
    record = Journal.record

    def pressed(self: Journal, plays: Sequence[RolloutResult]) -> None:
        record(self, plays)
        recorded.extend(play.task for play in plays if play.decides)
        if len(pressed_at) == 0:
            pressed_at.append(len(recorded))
            interrupt()

    monkeypatch.setattr(Journal, "record", pressed)
    with pytest.raises(Interrupted):
        run_parallel_rollout(config(tmp_path))
    assert sorted(decided(tmp_path)) == sorted(recorded)
    monkeypatch.setattr(Journal, "record", record)
    assert run_parallel_rollout(config(tmp_path)).owed == 0


def test_an_error_that_nothing_holds_back_after_a_commit_records_results_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where signals cannot be held back, an interrupt may come between the commit and the driver's note of it."""
    record = Journal.record
    calls: list[int] = []

    def broken_off(self: Journal, plays: Sequence[RolloutResult]) -> None:
        record(self, plays)
        calls.append(len(plays))
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "record", broken_off)
    with pytest.raises(Interrupted):
        run_parallel_rollout(config(tmp_path))
    monkeypatch.setattr(Journal, "record", record)
    summary = run_parallel_rollout(config(tmp_path))
    assert (summary.owed, summary.plays, summary.mean) == (0, 8, 1.0)


def test_an_interrupt_while_the_first_tasks_are_handed_out_is_one_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Session, *_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_feed", interrupted)
        with pytest.raises(Interrupted):
            run_parallel_rollout(config(tmp_path))
    assert json.loads((tmp_path / "results/run/summary.json").read_text())["owed"] == 8
    assert run_parallel_rollout(config(tmp_path)).owed == 0


def test_what_rollouts_had_used_that_an_interrupt_ended_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is lost while the run stops: its rollout stays owed, and what it paid for stays in the account."""
    cancel = Run.cancel

    def losing(self: Run, *arguments: Any) -> None:
        cancel(self, *arguments)
        for number, response in self.ready.items():
            usage: dict[str, float] = {"requests": 2, "prompt_tokens": 10, "completion_tokens": 5}
            self.ready[number] = replace(response, status=TaskStatus.LOST, usage=usage)

    def interrupted(self: Run, timeout: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "cancel", losing)
        patch.setattr(Run, "collect", interrupted)
        with pytest.raises(Interrupted):
            run_parallel_rollout(config(tmp_path))
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        lost = journal.rows("SELECT count(*), sum(requests), sum(prompt_tokens) FROM plays WHERE decides = 0")
        assert journal.count_owed(1) == 8
    assert lost == [(3, 6, 30)]
