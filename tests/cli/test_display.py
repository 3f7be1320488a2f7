"""The live display of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from paragent.cli.display import ProgressLines, duration, progress_line, progress_view
from paragent.rollout.live_run import LiveBudget
from paragent.rollout.live_status import LiveRollout, LiveStatus, RolloutProgress, RunState
from paragent.rollout.machines import MachineCounts
from paragent.store import RolloutResult, RolloutStatus


def progress() -> RolloutProgress:
    made = RolloutProgress("run", Path("run"), 10, active=2)
    made.count(RolloutResult("a", 1, RolloutStatus.COMPLETED, score=1.0, prompt_tokens=1200, completion_tokens=30))
    made.count(RolloutResult("b", 1, RolloutStatus.INFRASTRUCTURE, kind="endpoint"))
    made.count(RolloutResult("c", 1, RolloutStatus.INFRASTRUCTURE, kind="worker", final=False))
    rollouts = [
        LiveRollout("d", "retrying", 2.0, 45.0, 60.0),
        LiveRollout("e", "waiting for a machine", 5.0, None, 1.0),
    ]
    made.live = LiveStatus(3, 8, rollouts)
    made.machines = MachineCounts(in_use=2, resetting=1, booting=0, total=3, waiting=1)
    return made


def test_the_terminal_view_shows_the_progress() -> None:
    console = Console(width=120, record=True, force_terminal=True)
    console.print(progress_view(progress()))
    shown = console.export_text()
    for words in (
        "1/10",
        "score 1.000 (1 measured)",
        "requests 3 / 8",
        "machines 2 in use, 1 resetting / 3",
        "retrying in 0:45",
        "waiting for a machine",
        "endpoint 1",
        "1,200 in",
        "retries 1",
    ):
        assert words in shown, shown


def test_the_line_shows_the_progress() -> None:
    said = progress_line(progress())
    for words in (
        "1 of 10 done",
        "2 active (2 waiting: retrying in 0:45)",
        "score 1.000",
        "1 endpoint",
        "requests 3 / 8",
        "resetting / 3",
    ):
        assert words in said, said


def test_the_line_says_waiting_once() -> None:
    made = progress()
    made.live.rollouts[0] = LiveRollout("d", "waiting for a machine", 2.0, None, 60.0)
    assert "2 active (2 waiting: for a machine)" in progress_line(made)


def test_lines_print_each_message_once(capsys: pytest.CaptureFixture[str]) -> None:
    made, lines = progress(), ProgressLines()
    error = "EndpointDown: the endpoint failed {} times for one turn. Check that it runs"
    for number in (1, 2, 3):
        made.count(
            RolloutResult(f"x{number}", 1, RolloutStatus.INFRASTRUCTURE, kind="endpoint", error=error.format(number))
        )
        lines.print(made)
    made.count(RolloutResult("y", 1, RolloutStatus.INFRASTRUCTURE, kind="endpoint", error="EndpointDown: HTTP 503"))
    lines.print(made)
    shown = capsys.readouterr().err.splitlines()
    assert [line for line in shown if " done, " not in line] == [
        "run: endpoint: the endpoint failed 1 times for one turn. Check that it runs",
        "run: endpoint: HTTP 503",
    ]
    assert [part for line in shown for part in line.split(", ") if part.endswith(" endpoint")] == [
        f"{number} endpoint" for number in (2, 3, 4, 5)
    ]


def test_states_and_budgets_are_shown() -> None:
    made = progress()
    made.count(RolloutResult("f", 1, RolloutStatus.CANCELLED, kind="cancelled", error="cancelled by a user"))
    made.budgets = [LiveBudget("tokens", 5000.0, 1230.0), LiveBudget("cost", 2.0, None), LiveBudget("time", 90.0, 5.0)]
    made.state = RunState.RUNNING
    assert "running" not in progress_line(made), "the usual state is not shown"
    made.state = RunState.PAUSING
    console = Console(width=160, record=True, force_terminal=True)
    console.print(progress_view(made))
    for shown in (progress_line(made), console.export_text()):
        for words in ("pausing", "tokens 1,230 of 5,000", "cost unknown of 2.0000", "time 5 s of 90 s", "1 cancelled"):
            assert words in shown, shown


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.4, 45, 60, 3723)] == ["0:00", "0:45", "1:00", "1:02:03"]
