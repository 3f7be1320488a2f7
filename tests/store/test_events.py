"""What the journal records besides results: activities, events of machines and workers, notes; and upgrades of old journals."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.errors import StoreFailed, UsageError
from paragent.store import (
    ActivityInterval,
    Journal,
    MachineEvent,
    RolloutActivity,
    RolloutResult,
    RolloutStatus,
    RunDirectory,
    WorkerEvent,
    add_note,
    pack_activity,
    summarise,
    unpack_activity,
)
from paragent.store.activity import MOST_INTERVALS, merged
from tests.children import BoundedPopen

VERSION_3 = Path(__file__).with_name("version_3.sql")
"""A journal of format version 3, written by `paragent rollout --mode math --model demo --limit 3` of that version."""

durations = st.just(0.0) | st.floats(1e-9, 1e5)
intervals = st.lists(st.builds(ActivityInterval, st.sampled_from(RolloutActivity), durations), max_size=600)


def totals(given: Sequence[ActivityInterval]) -> dict[RolloutActivity, float]:
    found: dict[RolloutActivity, float] = defaultdict(float)
    for activity, seconds in given:
        if seconds > 0:
            found[activity] += seconds
    return found


def result(task: str) -> RolloutResult:
    return RolloutResult(task, 1, RolloutStatus.COMPLETED)


# --- activities -------------------------------------------------------------------------------------------------------


def test_the_codes_of_activities_never_change() -> None:
    assert [(word.value, word.code) for word in RolloutActivity] == [
        ("starting", 0),
        ("waiting for a machine", 1),
        ("opening", 2),
        ("working", 3),
        ("generating", 4),
        ("acting", 5),
        ("waiting for the endpoint", 6),
        ("scoring", 7),
        ("closing", 8),
    ]
    assert pack_activity([ActivityInterval(RolloutActivity.ACTING, 1.5)]) == b"\x05\x00\x00\xc0\x3f"


@given(intervals)
def test_packing_keeps_the_seconds_of_each_activity_in_a_bounded_number_of_intervals(
    given: list[ActivityInterval],
) -> None:
    body = pack_activity(given)
    unpacked = unpack_activity(body)
    assert len(body) == 5 * len(unpacked) <= 5 * MOST_INTERVALS
    assert totals(unpacked) == pytest.approx(totals(given), rel=1e-5)
    assert all(one.activity is not other.activity for one, other in pairwise(unpacked))


@given(intervals, st.integers(len(RolloutActivity), 300))
def test_merging_changes_nothing_if_there_are_few_intervals(given: list[ActivityInterval], most: int) -> None:
    joined = merged(given, len(given) + 1)
    limited = merged(given, most)
    assert len(limited) <= most
    assert totals(limited) == pytest.approx(totals(given))
    if len(joined) <= most:
        assert limited == joined
    assert merged(limited, most) == limited


def test_long_intervals_keep_their_place_when_short_ones_are_merged() -> None:
    short = [ActivityInterval(RolloutActivity.GENERATING, 0.01), ActivityInterval(RolloutActivity.ACTING, 0.01)]
    waiting = ActivityInterval(RolloutActivity.WAITING_FOR_ENDPOINT, 60.0)
    limited = merged([*short * 100, waiting, *short * 100, waiting, *short * 100])
    assert [one for one in limited if one.activity is waiting.activity] == [waiting, waiting]
    before = sum(one.seconds for one in limited[: limited.index(waiting)])
    assert before == pytest.approx(2.0)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, math.nan, math.inf, 1e300])
def test_intervals_without_a_valid_duration_are_left_out(seconds: float) -> None:
    valid = ActivityInterval(RolloutActivity.WORKING, 1.0)
    assert unpack_activity(pack_activity([ActivityInterval(RolloutActivity.OPENING, seconds), valid])) == [valid]


@pytest.mark.parametrize("body", [b"1234", b"\xff\0\0\0\0"])
def test_bytes_that_are_not_activities_are_rejected(body: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not packed activities"):
        unpack_activity(body)
    with Journal(tmp_path / "j") as journal:
        one = result("a")
        one.activity = body
        journal.record([one])
        [stored] = journal.results()
        assert (stored.activity, stored.status) == (None, RolloutStatus.COMPLETED)
        assert "activity: not packed" in stored.error


def test_times_machine_and_activity_are_stored_and_the_activity_is_not_in_the_results_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.open({}, "x")
    one = result("a")
    one.started, one.machine, one.cached_tokens, one.reasoning_tokens = 12.5, "m-1", 7, 3
    one.activity = pack_activity([ActivityInterval(RolloutActivity.WORKING, 2.0)])
    directory.journal.record([one])
    directory.append_results([one])
    [stored] = directory.journal.results()
    assert (stored.started, stored.machine, stored.cached_tokens, stored.reasoning_tokens) == (12.5, "m-1", 7, 3)
    assert unpack_activity(stored.activity or b"") == [ActivityInterval(RolloutActivity.WORKING, 2.0)]
    line = json.loads((tmp_path / "run/results.jsonl").read_text())
    assert (line["started"], line["machine"], line["cached_tokens"], line["reasoning_tokens"]) == (12.5, "m-1", 7, 3)
    assert "activity" not in line
    directory.close()


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_are_stored_with_the_results_of_their_batch(tmp_path: Path) -> None:
    leased = MachineEvent("m-1", "leased", 5.0, "host:1 a", "")
    lost = WorkerEvent("host:1", "lost", 6.0, "killed \ud800")
    with Journal(tmp_path / "j") as journal:
        journal.record([], [MachineEvent("m-1", "booting", 1.0)], [WorkerEvent("host:1", "started", 1.0)])
        journal.record([result("a")], [leased], [lost])
        journal.record([result("b")], [leased], [lost])  # recorded again after an interrupt
        assert [(one.number, one.machine, one.state, one.at, one.holder) for one in journal.machine_events()] == [
            (1, "m-1", "booting", 1.0, ""),
            (2, "m-1", "leased", 5.0, "host:1 a"),
        ]
        assert [(one.number, one.event, one.detail) for one in journal.worker_events(after=1)] == [
            (2, "lost", "killed \ufffd")
        ]
    with Journal(tmp_path / "j") as journal:  # numbers continue in the next session
        journal.record([], [MachineEvent("m-1", "free", 7.0)])
        assert [one.state for one in journal.machine_events()] == ["booting", "leased", "free"]


def test_a_batch_that_cannot_be_stored_stores_no_events(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.record([result("a")])
        with pytest.raises(StoreFailed):
            journal.record([result("a")], [MachineEvent("m", "free", 1.0)], [WorkerEvent("w", "lost", 1.0)])
        assert not [*journal.machine_events(), *journal.worker_events()]


def test_events_are_durable_when_record_returns(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from paragent.store import *\n"
        "events = [MachineEvent('m', 'free', float(n)) for n in range(1200)]\n"
        "journal = Journal(Path(sys.argv[1])); journal.record([], events, [WorkerEvent('w', 'started', 1.0)])\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "j")], check=False, timeout=60)
    with Journal(tmp_path / "j", read_only=True) as journal:
        assert [one.at for one in journal.machine_events()] == [float(n) for n in range(1200)]
        assert [one.event for one in journal.worker_events()] == ["started"]


# --- notes ------------------------------------------------------------------------------------------------------------


def test_another_process_adds_notes_while_results_are_recorded(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from paragent.store import add_note\n"
        "for n in range(50): add_note(Path(sys.argv[1]), 1, n, f'note {n}')"
    )
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.record([result("a")])
        with BoundedPopen([sys.executable, "-c", code, str(path)]) as notes:
            recorded = 0
            while notes.poll() is None:
                journal.record([result(f"b{recorded}")])
                recorded += 1
        assert notes.returncode == 0
        assert sum(1 for _ in journal.results()) == recorded + 1
        assert [(note.task, note.step, note.text) for note in journal.notes()] == [
            ("a", number, f"note {number}") for number in range(50)
        ]


def test_notes_belong_to_an_execution(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.record([result("a"), result("b")])
    note = add_note(path, 2, 3, "look \ud800 here")
    assert (note.task, note.attempt, note.execution, note.step, note.text) == ("b", 1, 2, 3, "look \ufffd here")
    with pytest.raises(UsageError, match="no execution with the number 9"):
        add_note(path, 9, 0, "?")
    with pytest.raises(StoreFailed):
        add_note(tmp_path / "missing", 1, 0, "?")
    assert not (tmp_path / "missing").exists()
    with Journal(path, read_only=True) as journal:
        assert journal.notes(2) == journal.notes() == [note]
        assert journal.notes(1) == []


# --- upgrade ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def old_journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(VERSION_3.read_text())
    return path


@pytest.mark.parametrize("read_only", [False, True])
def test_a_journal_of_version_3_is_upgraded(old_journal: Path, read_only: bool) -> None:
    with Journal(old_journal, read_only=read_only) as journal:
        assert journal.meta("version") == "5"
        stored = list(journal.results())
        assert [(one.task, one.score) for one in stored] == [("math-3", 1.0), ("math-2", 1.0), ("math-1", 1.0)]
        new = {(one.started, one.machine, one.activity, one.cached_tokens, one.reasoning_tokens) for one in stored}
        assert new == {(0.0, "", None, None, None)}
        assert journal.trajectory(1)["messages"]
        assert not [*journal.machine_events(), *journal.worker_events(), *journal.notes()]
        assert summarise(journal, 1).mean == 1.0
    with Journal(old_journal) as journal:
        journal.record([result("math-4")], [MachineEvent("m", "free", 1.0)])
        assert sum(1 for _ in journal.results()) == 4
    assert add_note(old_journal, 1, 0, "old").task == "math-3"


def test_a_reader_upgrades_a_journal_while_another_process_of_version_3_records(old_journal: Path) -> None:
    with contextlib.closing(sqlite3.connect(old_journal, isolation_level=None)) as old:
        Journal(old_journal, read_only=True).close()
        columns = [row[1] for row in old.execute("PRAGMA table_info(results)")][:22]
        copied = ", ".join(columns[2:])
        old.execute(f"INSERT INTO results (task, {copied}) SELECT 'math-4', {copied} FROM results WHERE number = 1")
    with Journal(old_journal, read_only=True) as journal:
        assert [(one.task, one.started) for one in journal.results()][-1] == ("math-4", 0.0)


def test_a_journal_of_version_3_that_cannot_be_changed_is_rejected(old_journal: Path) -> None:
    with contextlib.closing(sqlite3.connect(old_journal, isolation_level=None)) as other:
        other.execute("CREATE TABLE notes (other TEXT)")  # the upgrade fails after the columns were added
    with pytest.raises(StoreFailed, match=r"version 3 and cannot be upgraded to version 5.*already exists"):
        Journal(old_journal, read_only=True)
    with contextlib.closing(sqlite3.connect(old_journal, isolation_level=None)) as other:
        assert len(list(other.execute("PRAGMA table_info(results)"))) == 22, "nothing was changed"
        assert list(other.execute("SELECT value FROM meta WHERE key = 'version'")) == [("3",)]
