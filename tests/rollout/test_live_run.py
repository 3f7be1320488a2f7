"""`LiveRun`: its JSON form and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paragent.rollout.live_run import (
    LiveBudget,
    LiveMachine,
    LiveRun,
    LiveWorker,
    RunState,
    read_session_file,
    write_session_file,
)
from paragent.rollout.live_status import LiveRollout

LIVE = LiveRun(
    run="run",
    state=RunState.PAUSED,
    at=12.5,
    pid=7,
    host="h",
    budgets=[LiveBudget("tokens", 100.0, 20.0)],
    machines=[LiveMachine("m1", "leased", 3.0, "h:9 t1", 2, "")],
    workers=[LiveWorker("h:9", rollouts=1)],
    rollouts=[LiveRollout("t1", "working", 1.0, None, 2.0, "t1", 1, "h:9")],
)


def test_a_record_survives_its_json_form() -> None:
    assert LiveRun.from_json(json.loads(json.dumps(LIVE.as_json()))) == LIVE


def test_fields_of_a_newer_version_are_left_out() -> None:
    values = json.loads(json.dumps(LIVE.as_json())) | {"new": 1}
    values["workers"][0]["new"] = 1
    assert LiveRun.from_json(values) == LIVE


@pytest.mark.parametrize("wrong", [{}, {"run": "run"}, LIVE.as_json() | {"state": "odd"}, {"workers": [1]}])
def test_other_values_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not the state of a run|not a valid RunState"):
        LiveRun.from_json(wrong)


def test_the_file_is_replaced_and_a_damaged_one_is_ignored(tmp_path: Path) -> None:
    assert read_session_file(tmp_path) is None
    write_session_file(tmp_path, LIVE)
    assert read_session_file(tmp_path) == LIVE
    (tmp_path / "session.json").write_text("{")
    assert read_session_file(tmp_path) is None
    write_session_file(tmp_path / "none", LIVE)
