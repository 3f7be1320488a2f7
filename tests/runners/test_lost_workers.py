"""Lost workers are logged: the first at once, later ones together, each worker once."""

from __future__ import annotations

import pytest

from paragent._internal.clock import ManualClock
from paragent.runners.lost_workers import LostWorkers


def test_the_first_loss_is_logged_at_once_and_later_ones_together(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    lost = LostWorkers(clock)
    lost.note("h:1", "worker h:1 was killed by SIGKILL")
    for number in range(2, 6):
        lost.note(f"h:{number}", f"worker h:{number} ended")
        lost.note(f"h:{number}", "said again by a call that was lost with it")
    assert caplog.messages == ["lost a worker: worker h:1 was killed by SIGKILL"]
    clock.advance(29.0)
    lost.log()
    assert len(caplog.messages) == 1
    clock.advance(1.0)
    lost.log()
    lost.log()
    assert caplog.messages[1:] == ["lost 4 more workers; the last one: worker h:5 ended"]
    assert {(record.name, record.levelname) for record in caplog.records} == {("paragent", "WARNING")}


def test_a_worker_with_the_pid_of_a_lost_one_is_another_worker(caplog: pytest.LogCaptureFixture) -> None:
    lost = LostWorkers(ManualClock())
    for reason in ("first", "second"):
        lost.note_start("h:1")
        lost.note("h:1", reason)
    lost.log(now=True)
    assert caplog.messages == ["lost a worker: first", "lost a worker: second"]


def test_what_was_not_logged_is_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    lost = LostWorkers(ManualClock())
    for worker in ("h:1", "h:2"):
        lost.note(worker, f"worker {worker} ended")
    lost.log(now=True)
    lost.log(now=True)
    assert caplog.messages == ["lost a worker: worker h:1 ended", "lost a worker: worker h:2 ended"]
