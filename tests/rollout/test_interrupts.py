"""Ctrl-C at the worst moments of a rollout run: results that came are kept, once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paragent import Interrupted, RolloutConfig, run_parallel_rollout
from paragent.rollout.running import Session
from paragent.store import Journal, Play

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


def test_an_interrupt_while_results_are_recorded_records_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []
    pressed_at: list[int] = []
    record = Journal.record

    def pressed(self: Journal, plays: Sequence[Play]) -> None:
        record(self, plays)
        recorded.extend(play.task for play in plays if play.decides)
        if len(pressed_at) == 0:
            pressed_at.append(len(recorded))
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Journal, "record", pressed)
    with pytest.raises(Interrupted):
        run_parallel_rollout(config(tmp_path))
    assert sorted(decided(tmp_path)) == sorted(recorded)
    monkeypatch.setattr(Journal, "record", record)
    assert run_parallel_rollout(config(tmp_path)).owed == 0
