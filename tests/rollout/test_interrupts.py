"""Interrupts at every step of a run: results that came are recorded once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paragent import Interrupted, RolloutConfig, run_parallel_rollout
from paragent.rollout import report
from paragent.rollout.blame import SameFailures
from paragent.rollout.session import RolloutSession
from paragent.runners.run import Run
from paragent.store import Journal, RolloutResult, RunDirectory
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


def final_tasks(tmp_path: Path) -> list[str]:
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        return [row[0] for row in journal.rows("SELECT task FROM results WHERE final = 1")]


@pytest.mark.parametrize(
    ("owner", "method"),
    [(Run, "feed"), (SameFailures, "note"), (RunDirectory, "write_files"), (RolloutSession, "watch")],
)
def test_results_that_came_before_an_interrupt_are_recorded(
    owner: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the first call of a method, or of the observer, after results came."""
    came: set[str] = set()
    raised: list[bool] = []
    original, collect = getattr(owner, method), Run.collect

    def interrupt_once() -> None:
        if came and not raised:
            raised.append(True)
            raise KeyboardInterrupt

    def interrupted(self: Any, *arguments: Any) -> Any:
        interrupt_once()
        return original(self, *arguments)

    def noting(self: Run, timeout: float) -> None:
        collect(self, timeout)
        came.update(response.id.partition(":")[2] for response in self.ready.values() if response.success)

    observer = None
    monkeypatch.setattr(Run, "collect", noting)
    if owner is RolloutSession:
        monkeypatch.setattr(report, "WATCH_INTERVAL", -1.0)
        observer = lambda _: interrupt_once()  # noqa: E731
    else:
        monkeypatch.setattr(owner, method, interrupted)
    with pytest.raises(Interrupted):
        run_parallel_rollout(config(tmp_path), observer)
    monkeypatch.undo()
    assert came
    assert came <= set(final_tasks(tmp_path))
    summary = run_parallel_rollout(config(tmp_path))
    assert (summary.mean, summary.pending) == (1.0, 0)
    assert len(final_tasks(tmp_path)) == len(set(final_tasks(tmp_path))) == summary.done


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(params=["Ctrl-C", "Ctrl-C with a handler", "SIGTERM"])
def interrupt(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Return a function that sends this process a signal whose handler raises KeyboardInterrupt."""
    number = signal.SIGTERM if request.param == "SIGTERM" else signal.SIGINT
    handler = signal.default_int_handler if request.param == "Ctrl-C" else _raise_interrupt
    before = signal.signal(number, handler)
    yield lambda: os.kill(os.getpid(), number)
    assert signal.getsignal(number) is handler, "handlers are restored"
    signal.signal(number, before)


def test_an_interrupt_while_results_are_recorded_records_them_once(
    interrupt: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []
    pressed_at: list[int] = []
    record = Journal.record

    def pressed(self: Journal, results: Sequence[RolloutResult], *events: Any) -> None:
        record(self, results, *events)
        recorded.extend(one.task for one in results if one.final)
        if len(pressed_at) == 0:
            pressed_at.append(len(recorded))
            interrupt()

    monkeypatch.setattr(Journal, "record", pressed)
    with pytest.raises(Interrupted):
        run_parallel_rollout(config(tmp_path))
    assert sorted(final_tasks(tmp_path)) == sorted(recorded)
    monkeypatch.setattr(Journal, "record", record)
    assert run_parallel_rollout(config(tmp_path)).pending == 0


def test_an_interrupt_right_after_a_commit_records_results_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside the main thread signals cannot be deferred, so an interrupt may come between the commit and its note."""
    record = Journal.record
    calls: list[int] = []

    def interrupted(self: Journal, results: Sequence[RolloutResult], *events: Any) -> None:
        record(self, results, *events)
        calls.append(len(results))
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "record", interrupted)
    with pytest.raises(Interrupted):
        run_parallel_rollout(config(tmp_path))
    monkeypatch.setattr(Journal, "record", record)
    summary = run_parallel_rollout(config(tmp_path))
    assert (summary.pending, summary.executions, summary.mean) == (0, 8, 1.0)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        events = Counter((event.worker, event.event, event.at) for event in journal.worker_events())
    assert set(events.values()) == {1}, "each event is recorded once"


def test_an_interrupt_while_the_first_rollouts_are_dispatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Run, *_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "feed", interrupted)
        with pytest.raises(Interrupted):
            run_parallel_rollout(config(tmp_path))
    assert json.loads((tmp_path / "results/run/summary.json").read_text())["pending"] == 8
    assert run_parallel_rollout(config(tmp_path)).pending == 0


def test_usage_of_rollouts_that_an_interrupt_ended_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is lost while the run stops: its rollout stays pending, and its usage is counted."""
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
        lost = journal.rows("SELECT count(*), sum(requests), sum(prompt_tokens) FROM results WHERE final = 0")
        assert journal.count_pending(1) == 8
    assert lost == [(3, 6, 30)]
