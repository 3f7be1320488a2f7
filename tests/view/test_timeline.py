"""The timeline: tracks of machines and workers, merged spans, utilisation."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paragent.rollout.live_run import LiveRun, RunState, write_session_file
from paragent.store import ActivityInterval, MachineEvent, RolloutActivity, RolloutResult, pack_activity
from paragent.view.api import Timeline
from paragent.view.runs import RunFolder
from paragent.view.timeline import TimelineData
from tests.view.recorded import journal_of, result, serving, write_run

NOW = 0.0
"""The start of the sessions of runs that a test writes with `write_run`, about."""


@pytest.fixture(autouse=True)
def _now() -> None:
    global NOW
    NOW = time.time()


def data_of(path: Path) -> TimelineData:
    return RunFolder(path.parent).get(path.name).part(TimelineData)


def spans(timeline: Timeline, name: str, slot: int = 0) -> list[tuple[float, float, str, int]]:
    """Return the spans of a track with absolute times and the words of the states."""
    [track] = [track for track in timeline.tracks if (track.name, track.slot) == (name, slot)]
    return [
        (round(timeline.origin + start, 2), round(timeline.origin + end, 2), timeline.states[state], number)
        for start, end, state, number in track.spans
    ]


def at(seconds: float, **given: Any) -> RolloutResult:
    return result(given.pop("task", f"t{seconds}"), started=round(NOW, 2) + seconds, **given)


def moved(found: list[tuple[float, float, str, int]]) -> list[tuple[float, float, str, int]]:
    return [(round(a - round(NOW, 2), 2), round(b - round(NOW, 2), 2), state, number) for a, b, state, number in found]


def test_activities_of_an_execution_are_spans_of_its_worker(tmp_path: Path) -> None:
    path = write_run(tmp_path, "one", [at(1)])
    found = data_of(path).timeline(None, None, 1000)
    assert moved(spans(found, "host:1")) == [
        (1, 1.5, "starting", 1),
        (1.5, 2.5, "generating", 1),
        (2.5, 3, "acting", 1),
    ]


def test_executions_at_the_same_time_have_different_places(tmp_path: Path) -> None:
    results = [at(0), at(1), at(2), at(3), at(10, worker="host:2")]
    path = write_run(tmp_path, "one", results)
    found = data_of(path).timeline(None, None, 1000)
    assert [(track.kind, track.name, track.slot) for track in found.tracks] == [
        ("worker", "host:1", 0),
        ("worker", "host:1", 1),
        ("worker", "host:2", 0),
    ]
    assert {number for *_, number in spans(found, "host:1", 0)} == {1, 3}
    assert {number for *_, number in spans(found, "host:1", 1)} == {2, 4}


def test_events_of_machines_are_spans_with_their_executions(tmp_path: Path) -> None:
    path = write_run(tmp_path, "one", [at(2, machine="m0"), at(20, worker="host:1")])
    base = round(NOW, 2)
    states = [("booting", 0), ("free", 1), ("leased", 1.5), ("resetting", 4.5), ("free", 5), ("stopped", 8)]
    with journal_of(path) as journal:
        journal.record([], machine_events=[MachineEvent("m0", state, base + seconds) for state, seconds in states])
    found = data_of(path).timeline(None, None, 1000)
    assert moved(spans(found, "m0")) == [
        (0, 1, "booting", 0),
        (1, 1.5, "free", 0),
        (1.5, 4.5, "leased", 1),
        (4.5, 5, "resetting", 0),
        (5, 8, "free", 0),
    ]
    assert found.machine_utilisation == pytest.approx(3 / 8, abs=0.01)
    assert [track.kind for track in found.tracks] == ["machine", "worker"]


def test_a_machine_without_events_is_leased_by_its_executions(tmp_path: Path) -> None:
    path = write_run(tmp_path, "one", [at(2, machine="m0"), at(6, machine="m0")])
    found = data_of(path).timeline(None, None, 1000)
    assert moved(spans(found, "m0")) == [(2, 4, "leased", 1), (6, 8, "leased", 2)]


def test_an_execution_without_activities_was_working(tmp_path: Path) -> None:
    path = write_run(tmp_path, "one", [at(2, activity=None)])
    assert moved(spans(data_of(path).timeline(None, None, 1000), "host:1")) == [(2, 4, "working", 1)]


def test_a_part_is_cut_out_and_its_utilisation_is_its_own(tmp_path: Path) -> None:
    path = write_run(tmp_path, "one", [at(1), at(11)])
    begin = round(NOW, 2) + 1.75
    part = data_of(path).timeline(begin, begin + 1, 1000)
    assert moved(spans(part, "host:1")) == [(1.75, 2.5, "generating", 1), (2.5, 2.75, "acting", 1)]
    assert part.origin + part.start == pytest.approx(begin)
    assert part.origin + part.end == pytest.approx(begin + 1)
    assert data_of(path).timeline(NOW + 5000, NOW + 6000, 100).tracks[0].spans == []


def test_short_spans_are_merged_into_the_state_that_took_most_of_a_bucket(tmp_path: Path) -> None:
    words = [RolloutActivity.GENERATING, RolloutActivity.ACTING] * 50
    intervals = [ActivityInterval(word, 0.9 if word is RolloutActivity.GENERATING else 0.1) for word in words]
    results = [at(100.0 * n, activity=pack_activity(intervals), ended=NOW + 100 * n + 50) for n in range(3)]
    path = write_run(tmp_path, "one", results)
    found = data_of(path).timeline(None, None, 20)
    merged = spans(found, "host:1")
    assert {state for _, _, state, _ in merged} == {"generating"}
    assert len(merged) <= 20
    assert len(spans(data_of(path).timeline(None, None, 4000), "host:1")) == 300
    assert found.tracks[0].busy > 0


def test_the_time_between_two_sessions_takes_no_buckets(tmp_path: Path) -> None:
    night = 36_000.0
    intervals = [ActivityInterval(word, 1.0) for word in (RolloutActivity.ACTING, RolloutActivity.CLOSING)] * 50
    results = [at(begin, activity=pack_activity(intervals), ended=NOW + begin + 100) for begin in (0.0, night)]
    path = write_run(tmp_path, "one", results)
    with contextlib.closing(sqlite3.connect(path / "journal.sqlite")) as db, db:
        db.execute("UPDATE sessions SET started = ?, seconds = 100", [round(NOW, 2)])
        db.execute("INSERT INTO sessions (started, seconds, results) VALUES (?, 100, 1)", [round(NOW, 2) + night])
    found = moved(spans(data_of(path).timeline(None, None, 200), "host:1"))
    assert [state for _, _, state, _ in found] == ["acting", "closing"] * 100
    assert found[99][1] == pytest.approx(100, abs=1)
    assert found[100][0] == pytest.approx(night, abs=1)


def test_shares_of_states_are_exact_where_spans_are_merged(tmp_path: Path) -> None:
    words = [RolloutActivity.GENERATING, RolloutActivity.ACTING] * 50
    intervals = [ActivityInterval(word, 0.9 if word is RolloutActivity.GENERATING else 0.1) for word in words]
    results = [at(50.0 * n, activity=pack_activity(intervals), ended=NOW + 50 * n + 50) for n in range(20)]
    found = data_of(write_run(tmp_path, "one", results)).timeline(round(NOW, 2), round(NOW, 2) + 1000, 10)
    assert {state for _, _, state, _ in spans(found, "host:1")} == {"generating"}
    shares = dict(zip(found.states, found.worker_shares, strict=True))
    assert {len(values) for values in shares.values()} == {len(found.columns)}
    assert sum(shares["generating"]) / len(found.columns) == pytest.approx(0.9, abs=0.01)
    assert sum(shares["acting"]) / len(found.columns) == pytest.approx(0.1, abs=0.01)
    assert found.machine_shares == []


@settings(max_examples=15)
@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0.01, 50)), min_size=1, max_size=60), st.integers(10, 200))
def test_spans_of_a_track_never_overlap_and_stay_inside(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[float, float]], buckets: int
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    ordered = sorted(given, key=lambda one: one[0] + one[1])
    results = [
        at(start, task=f"t{n}", activity=pack_activity([ActivityInterval(RolloutActivity.ACTING, seconds)]))
        for n, (start, seconds) in enumerate(ordered)
    ]
    for one, (_, seconds) in zip(results, ordered, strict=True):
        one.ended = one.started + seconds
    found = data_of(write_run(folder, "one", results)).timeline(None, None, buckets)
    for track in found.tracks:
        for before, after in zip(track.spans, track.spans[1:], strict=False):
            assert before[1] <= after[0] + 0.03
        assert all(found.start - 0.01 <= start <= end <= found.end + 0.01 for start, end, _, _ in track.spans)
        assert 0 <= track.busy <= 1


def test_what_is_recorded_later_is_added(tmp_path: Path) -> None:
    path = write_run(tmp_path, "one", [at(0)], tasks=["t0", "t5"])
    data = data_of(path)
    assert len(spans(data.timeline(None, None, 1000), "host:1")) == 3
    with journal_of(path) as journal:
        journal.record([at(5)])
    assert {number for *_, number in spans(data.timeline(None, None, 1000), "host:1")} == {1, 2}


def test_rollouts_under_way_are_shown_from_the_live_data(tmp_path: Path) -> None:
    path = write_run(tmp_path, "one", [at(-20)], tasks=["a", "b"])
    now = time.time()
    (path / "live").mkdir(exist_ok=True)
    live = LiveRun(run="one", state=RunState.RUNNING, at=now, pid=os.getpid(), host=socket.gethostname())
    write_session_file(path / "live", live)
    done = [ActivityInterval(RolloutActivity.OPENING, 2.0), ActivityInterval(RolloutActivity.GENERATING, 3.0)]
    rollout = ["b", 1, now - 5, "", pack_activity(done).hex(), 0, 0, 0, None, None, 0, 0]
    status = {"at": now, "worker": "host:1", "requests": [0, 0], "rollouts": [], "active": [rollout]}
    (path / "live" / "host-1.json").write_text(json.dumps(status))
    (path / "live" / "other-1.json").write_text(json.dumps(status | {"active": [["b", 1, 0, "", "zz"]]}))
    opening, generating = spans(data_of(path).timeline(None, None, 1000), "host:1")[-2:]
    assert (opening[2], generating[2]) == ("opening", "generating")
    assert generating[:2] == pytest.approx((now - 3, now), abs=0.1)


def test_a_damaged_activity_is_shown_as_work(tmp_path: Path) -> None:
    path = write_run(tmp_path, "one", [at(0.0, activity=b"\xff" * 7)])
    [one] = spans(data_of(path).timeline(None, None, 1000), "host:1")
    assert one[2] == "working"


def test_many_tracks_are_limited_to_the_least_busy(tmp_path: Path) -> None:
    results = [at(0.0, task=f"t{n}", worker=f"host:{n}") for n in range(350)]
    found = data_of(write_run(tmp_path, "one", results)).timeline(None, None, 1000)
    assert (len(found.tracks), found.hidden) == (300, 50)


def test_the_route_takes_a_part_and_a_width(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_run(folder, "one", [at(1)])
    with serving(folder) as (_, client):
        begin = client.get("/api/runs/one/timeline").json()["origin"] + 0.5
        found = client.get(f"/api/runs/one/timeline?from={begin}&to={begin + 1.5}&buckets=100").json()
        assert found["start"] == pytest.approx(0.5)
        assert len(found["tracks"]) == 1
        assert found["states"][:2] == ["starting", "waiting for a machine"]
        for query in ("from=x", "to=nan", "buckets=-1", "buckets=1e9"):
            assert client.get(f"/api/runs/one/timeline?{query}").status_code == 400
        assert client.get("/api/runs/one/timeline?buckets=999999999").status_code == 200


def test_a_run_without_results_has_an_empty_timeline(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_run(folder, "one", [], tasks=["a"])
    with serving(folder) as (_, client):
        answer: httpx.Response = client.get("/api/runs/one/timeline")
        assert answer.json()["tracks"] == []
        assert answer.json()["worker_utilisation"] is None
