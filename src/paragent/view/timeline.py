"""The timeline: what machines and workers did, as tracks of coloured spans with at most one span for each bucket of time.

Executions, activities and events are read once and kept as arrays; a request reads only what was recorded since. A worker
executes several rollouts at a time, so it has several tracks, one for each place.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import struct
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from paragent.errors import ParagentError
from paragent.machines.state_machine import MachineState
from paragent.rollout.live_status import running_rollouts
from paragent.store import RolloutActivity, unpack_activity
from paragent.view.api import Timeline, Track

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from paragent.rollout.live_run import LiveRun
    from paragent.rollout.live_status import UnfinishedRollout
    from paragent.store import Journal
    from paragent.view.runs import StoredRun

    Numbers = NDArray[Any]

__all__ = ["MOST_BUCKETS", "TimelineData"]

MOST_BUCKETS = 4000
_MOST_MADE = 16
"""Timelines that are kept; one may have 4 MB, and each time that a user chooses is another one."""
_MOST_TRACKS = 300
"""More tracks than that cannot be told apart on a screen."""
_COLUMNS = 200
"""Columns of the shares of states."""
_MOST_SPANS = 120_000
"""Of all tracks: with many tracks, each has fewer buckets, so that an answer has at most about 4 MB."""
_STATES = [*map(str, RolloutActivity), *map(str, MachineState)]
_CODES = {word: code for code, word in enumerate(_STATES)}
_IDLE = len(_STATES)
"""The code of no state: the time of a bucket in which a track has no span."""
_LEASED, _STOPPED = _CODES["leased"], _CODES["stopped"]
_WORKING = _CODES["working"]
_OVERLAP = 0.02
"""Seconds by which two executions of one place may overlap: their times come from different clocks."""
_INTERVAL = np.dtype([("code", "u1"), ("seconds", "<f4")])
"""The form of an interval in the column `activity`; see `store/activity.py`."""
_UNKNOWN = struct.Struct("<Bf")
_IDLE_STATES = {
    "waiting for a machine",
    "waiting for the endpoint",
    *map(str, set(MachineState) - {MachineState.LEASED}),
}
_IS_WORK = np.array([word not in _IDLE_STATES for word in _STATES], float)
"""1 for a state in which a machine or a worker does work."""


@dataclass(slots=True)
class Spans:
    """Spans in the order of time, which do not overlap, or spans of several tracks before they are sorted."""

    start: Numbers = field(default_factory=lambda: np.zeros(0))
    end: Numbers = field(default_factory=lambda: np.zeros(0))
    state: Numbers = field(default_factory=lambda: np.zeros(0, np.uint8))
    execution: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))

    def chosen(self, index: Numbers | slice) -> Spans:
        """Return some of the spans: by their indexes, a mask or a slice."""
        return Spans(self.start[index], self.end[index], self.state[index], self.execution[index])

    def followed_by(self, other: Spans) -> Spans:
        """Return these spans and others."""
        names = ("start", "end", "state", "execution")
        return Spans(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))

    def between(self, low: float, high: float) -> Spans:
        """Return the spans in an interval, cut at its ends."""
        first, after = np.searchsorted(self.end, low, "right"), np.searchsorted(self.start, high, "left")
        found = self.chosen(slice(int(first), int(after)))
        found.start, found.end = np.maximum(found.start, low), np.minimum(found.end, high)
        return found


class _WorkerTracks:
    """Assigns executions to the places of their workers, in the order in which they are recorded, which is that of their ends."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int]] = []
        """Worker and place of each track."""
        self._places: dict[str, list[list[float]]] = {}
        """For each worker, the end of its last execution and the track of each place."""

    def assign(self, worker: str, started: float, ended: float) -> int:
        """Return the track of an execution: the place that was free and was used last, or a new one."""
        places = self._places.setdefault(worker, [])
        latest, best = -1.0, None
        limit = started + _OVERLAP
        for place in places:
            if latest < place[0] <= limit:
                latest, best = place[0], place
        if best is None:
            best = [0.0, len(self.names)]
            self.names.append((worker, len(places)))
            places.append(best)
        if ended > best[0]:
            best[0] = ended
        return int(best[1])


class TimelineData:
    """What is known about the times of one run; may be used from any thread."""

    def __init__(self, run: StoredRun) -> None:
        self._run = run
        self._lock = threading.Lock()
        """Protects everything below; held while a timeline is made."""
        self._workers = _WorkerTracks()
        self._activities: list[Spans] = []
        """What the places of workers did, by track."""
        self._machines: dict[str, int] = {}
        """The track of each machine, counted from 0."""
        self._events: list[tuple[Numbers, Numbers]] = []
        """Time and state of the events of each machine, sorted by time."""
        self._used: list[Spans] = []
        """The executions on each machine."""
        self._states: list[Spans] = []
        """The states of each machine; the last one may end in the infinite future."""
        self._sessions: list[tuple[float, float]] = []
        self._last = self._last_event = 0
        self._read_from: Any = None
        self._made: dict[Any, Timeline] = {}
        """Timelines by their parameters; removed when something was recorded."""

    def timeline(self, start: float | None, end: float | None, buckets: int) -> Timeline:
        """Return the timeline of a part of the run.

        Args:
            start: where the part begins, in seconds since the epoch; None: at the beginning of the run.
            end: where it ends; None: at the end of the run, or now if it is live.
            buckets: the number of pixels; spans are at least as long as one.

        Raises:
            StoreFailed: the journal cannot be read.
        """
        key = (start, end, max(10, min(buckets, MOST_BUCKETS)))
        with self._lock:
            self._update()
            live = self._run.live()
            if live is None and key in self._made:
                return self._made[key]
            made = self._picture(live).timeline(*key)
            if live is None:
                self._made[key] = made
                if len(self._made) > _MOST_MADE:
                    del self._made[next(iter(self._made))]
            return made

    def warm(self) -> None:
        """Begin to read what was recorded, in a thread: the first timeline of a large run is then there sooner."""
        if self._read_from is None:
            threading.Thread(target=self._read, name="paragent-timeline", daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(ParagentError), self._lock:  # the request for the timeline reports the error
            self._update()

    def _picture(self, live: LiveRun | None) -> _Picture:
        workers, activities, sessions = self._workers, list(self._activities), list(self._sessions)
        if live is not None:
            workers = copy.deepcopy(workers)
            _add_running(running_rollouts(self._run.path / "live"), workers, activities)
            if sessions:
                sessions[-1] = (sessions[-1][0], max(live.at, sessions[-1][1]))
        names = [("machine", name, 0) for name in self._machines]
        names += [("worker", name, place) for name, place in workers.names]
        return _Picture(names, [*self._states, *activities], sessions)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        """Read what was recorded since the last call."""
        state = self._run.state_of_files()
        if state == self._read_from:
            return
        with self._run.open() as journal:
            self._read_results(journal)
            self._read_events(journal)
            rows = journal.rows("SELECT started, seconds FROM sessions ORDER BY started")
        self._sessions = [(started, started + seconds) for started, seconds in rows]
        pairs = zip(self._events, self._used, strict=True)
        self._states = [_machine_states(events, used, self._sessions) for events, used in pairs]
        self._made.clear()
        self._read_from = state

    def _read_results(self, journal: Journal) -> None:
        query = "SELECT number, started, ended, worker, machine, activity FROM results WHERE number > ? ORDER BY number"
        rows = journal.rows(query, [self._last])
        if not rows:
            return
        self._last = rows[-1][0]
        rows = [row for row in rows if row[1] > 0]
        assign = self._workers.assign
        tracks = np.array([assign(worker, started, ended) for _, started, ended, worker, *_ in rows], np.int64)
        spans, counts = _activity_spans(rows)
        _append(self._activities, np.repeat(tracks, counts), spans, len(self._workers.names))
        if any(row[4] for row in rows):
            used = [row for row in rows if row[4]]
            columns = [np.array(column) for column in zip(*((row[1], row[2], row[0]) for row in used), strict=True)]
            leases = Spans(columns[0], columns[1], np.full(len(used), _LEASED, np.uint8), columns[2].astype(np.int64))
            machines = np.array([self._machine(row[4]) for row in used])
            order = np.argsort(leases.start, kind="stable")
            _append(self._used, machines[order], leases.chosen(order), len(self._machines))

    def _machine(self, name: str) -> int:
        """Return the track of a machine; add one if it has none."""
        track = self._machines.get(name)
        if track is None:
            track = self._machines[name] = len(self._machines)
            self._events.append((np.zeros(0), np.zeros(0, np.uint8)))
            self._used.append(Spans())
        return track

    def _read_events(self, journal: Journal) -> None:
        cases = " ".join(f"WHEN '{word}' THEN {_CODES[word]}" for word in map(str, MachineState))
        # As JSON, because a run has several events for each rollout, and rows as Python objects take longer.
        [(last, names, times, states)] = journal.rows(
            f"SELECT max(number), json_group_array(machine), json_group_array(at), "  # noqa: S608 - constants
            f"json_group_array(CASE state {cases} ELSE {_STOPPED} END) FROM machine_events WHERE number > ?",
            [self._last_event],
        )
        if last is None:
            return
        self._last_event = last
        machine = np.array([self._machine(name) for name in json.loads(names)])
        at, state = np.array(json.loads(times)), np.array(json.loads(states), np.uint8)
        order = np.argsort(_small(machine), kind="stable")
        machine, at, state = machine[order], at[order], state[order]
        bounds = np.searchsorted(machine, np.arange(len(self._events) + 1))
        for track, (first, after) in enumerate(pairwise(bounds.tolist())):
            if after > first:
                known = self._events[track]
                times_of = np.concatenate([known[0], at[first:after]])
                states_of = np.concatenate([known[1], state[first:after]])
                order = np.argsort(times_of, kind="stable")
                self._events[track] = (times_of[order], states_of[order])


def _append(tracks: list[Spans], track: Numbers, spans: Spans, count: int) -> None:
    """Append spans to those of their tracks; the order of the spans of one track is kept."""
    tracks += [Spans() for _ in range(count - len(tracks))]
    order = np.argsort(_small(track), kind="stable")
    spans = spans.chosen(order)
    bounds = np.searchsorted(track[order], np.arange(count + 1))
    for number, (first, after) in enumerate(pairwise(bounds.tolist())):
        if after > first:
            tracks[number] = tracks[number].followed_by(spans.chosen(slice(first, after)))


def _small(tracks: Numbers) -> Numbers:
    """Return numbers of tracks as 16 bits if they fit, because numpy then sorts them ten times as fast."""
    return tracks.astype(np.int16) if len(tracks) and tracks.max() < 1 << 15 else tracks


def _activity_spans(rows: Sequence[tuple[Any, ...]]) -> tuple[Spans, Numbers]:
    """Return the intervals of executions and how many each has.

    An execution that does not know its activities was working from its start to its end.
    """
    blobs = [_known(row[5]) or _UNKNOWN.pack(_WORKING, max(0.0, row[2] - row[1])) for row in rows]
    intervals = np.frombuffer(b"".join(blobs), _INTERVAL)
    counts = np.fromiter(map(len, blobs), np.int64, len(blobs)) // _INTERVAL.itemsize
    seconds = np.maximum(intervals["seconds"].astype(np.float64), 0.0)
    passed = np.cumsum(seconds)
    firsts = np.cumsum(counts) - counts
    before = np.where(firsts > 0, passed[np.maximum(firsts - 1, 0)], 0.0) if len(passed) else np.zeros(len(rows))
    ends = passed + np.repeat(np.array([row[1] for row in rows]) - before, counts)
    states = np.where(intervals["code"] < len(RolloutActivity), intervals["code"], np.uint8(_WORKING))
    numbers = np.repeat(np.array([row[0] for row in rows], np.int64), counts)
    return Spans(ends - seconds, ends, states, numbers), counts


def _known(activity: Any) -> bytes:
    """Return recorded activities; nothing if they are damaged."""
    return activity if isinstance(activity, bytes) and len(activity) % _INTERVAL.itemsize == 0 else b""


def _machine_states(events: tuple[Numbers, Numbers], used: Spans, sessions: Sequence[tuple[float, float]]) -> Spans:
    """Return the states of a machine: each lasts until the next event, or until the end of its session.

    A machine of a pool that does not report events was leased by the executions on it.
    """
    at, state = events
    if not len(at):
        return used
    ends = np.minimum(np.append(at[1:], np.inf), _session_ends(at, sessions))
    execution = np.zeros(len(at), np.int64)
    if len(used.start):
        middle = np.minimum((at + ends) / 2, at + 1e6)
        index = np.searchsorted(used.start, middle, "right") - 1
        inside = (state == _LEASED) & (index >= 0) & (used.end[index] >= middle)
        execution = np.where(inside, used.execution[index], 0)
    return Spans(at, ends, state, execution).chosen((state != _STOPPED) & (ends > at))


def _add_running(running: Iterable[UnfinishedRollout], workers: _WorkerTracks, activities: list[Spans]) -> None:
    """Add what the rollouts under way have done until their workers reported it."""
    for one in sorted(running, key=lambda one: one.started):
        track = workers.assign(one.worker, one.started, one.reported)
        activities += [Spans() for _ in range(len(workers.names) - len(activities))]
        try:
            intervals = unpack_activity(one.activity)
        except ValueError:
            continue  # another program wrote the file
        ends = one.started + np.cumsum([interval.seconds for interval in intervals])
        starts = np.concatenate([[one.started], ends[:-1]])
        states = np.array([_CODES[interval.activity] for interval in intervals], np.uint8)
        done = Spans(starts, ends, states, np.zeros(len(intervals), np.int64))
        activities[track] = activities[track].followed_by(done)


def _session_ends(at: Numbers, sessions: Sequence[tuple[float, float]]) -> Numbers:
    """Return the end of the session in which each time is; infinite for the last session, which may be active."""
    if not sessions:
        return np.full(len(at), np.inf)
    starts = np.array([start for start, _ in sessions])
    ends = np.array([*(end for _, end in sessions[:-1]), np.inf])
    index = np.clip(np.searchsorted(starts, at, "right") - 1, 0, len(sessions) - 1)
    return np.asarray(ends[index])


class _Picture:
    """Makes timelines of parts of a run from the spans of all tracks."""

    def __init__(
        self, names: list[tuple[str, str, int]], tracks: list[Spans], sessions: list[tuple[float, float]]
    ) -> None:
        used = [spans for spans in tracks if len(spans.start)]
        lasts = [float(spans.end[-1] if np.isfinite(spans.end[-1]) else spans.start[-1]) for spans in used]
        self._origin = min([*(start for start, _ in sessions), *(float(spans.start[0]) for spans in used)], default=0.0)
        self._last = max([*(end for _, end in sessions), *lasts], default=0.0)
        self._sessions = [(start - self._origin, end - self._origin) for start, end in sessions]
        self._names = names
        self._tracks = tracks

    def timeline(self, start: float | None, end: float | None, buckets: int) -> Timeline:
        """Return the part from `start` to `end`, in seconds since the epoch."""
        whole = self._last - self._origin
        low = 0.0 if start is None else min(max(start - self._origin, 0.0), whole)
        high = whole if end is None else min(max(end - self._origin, low), whole)
        parts = [spans.between(self._origin + low, self._origin + high) for spans in self._tracks]
        times = [_seconds(spans) for spans in parts]
        visible = sum(max(0.0, min(high, last) - max(low, first)) for first, last in self._sessions) or high - low
        order = sorted(range(len(parts)), key=lambda number: times[number][0])[:_MOST_TRACKS]
        buckets = min(buckets, max(100, _MOST_SPANS // max(1, len(order))))
        segments = self._segments(low, high)
        width = sum(end - start for start, end in segments) / _COLUMNS
        columns = [(start, end, max(1, round((end - start) / width))) for start, end in segments]
        shares = [self._shares(parts, columns, kind) for kind in ("machine", "worker")]
        tracks = []
        for number in sorted(order, key=lambda number: _order(self._names[number])):
            spans = parts[number]
            spans.start, spans.end = spans.start - self._origin, spans.end - self._origin
            is_short = len(spans.start) <= buckets // 2
            found = _exact(spans) if is_short else _merged(spans, segments, buckets)
            tracks.append(Track(*self._names[number], found, _fraction(times[number][0], visible) or 0.0))
        machines = [one for one, name in zip(times, self._names, strict=True) if name[0] == "machine"]
        workers = [one for one, name in zip(times, self._names, strict=True) if name[0] == "worker"]
        return Timeline(
            origin=self._origin,
            start=low,
            end=high,
            states=_STATES,
            tracks=tracks,
            hidden=len(self._names) - len(tracks),
            machine_utilisation=_fraction(sum(busy for busy, _ in machines), sum(existed for _, existed in machines)),
            worker_utilisation=_fraction(sum(busy for busy, _ in workers), visible * len(workers)),
            sessions=self._sessions,
            columns=[edges for start, end, count in columns for edges in pairwise(_edges(start, end, count))],
            machine_shares=shares[0],
            worker_shares=shares[1],
        )

    def _shares(
        self, parts: Sequence[Spans], columns: Sequence[tuple[float, float, int]], kind: str
    ) -> list[list[float]]:
        """Return for each state and column its share of the time of all tracks of a kind."""
        chosen = [spans for spans, name in zip(parts, self._names, strict=True) if name[0] == kind]
        if not chosen or not columns:
            return []
        starts, ends, states = (
            np.concatenate([getattr(spans, name) for spans in chosen]) for name in ("start", "end", "state")
        )
        found = []
        for start, end, count in columns:
            first, last = (
                np.clip((times - (self._origin + start)) * (count / (end - start)), 0, count)
                for times in (starts, ends)
            )
            found.append(_taken_by_bucket(first, last, states, count) / len(chosen))
        shares: list[list[float]] = np.hstack(found).round(4).tolist()
        return shares

    def _segments(self, low: float, high: float) -> list[tuple[float, float]]:
        """Return the parts of a time that are not between two sessions, in which nothing happened."""
        found, begin, last = [], low, high
        for start, end in self._sessions:
            left, right = max(last, low), min(start, high)
            if left < right:
                found.append((begin, left))
                begin = right
            last = end
        return [(start, end) for start, end in [*found, (begin, high)] if end > start]


def _merged(spans: Spans, segments: Sequence[tuple[float, float]], buckets: int) -> list[tuple[float, float, int, int]]:
    """Return spans that are at least as long as a bucket; the buckets are divided among the segments by their lengths."""
    width = sum(end - start for start, end in segments) / buckets
    found: list[tuple[float, float, int, int]] = []
    for start, end in segments:
        count = max(1, round((end - start) / width))
        inside = spans.between(start, end)
        if len(inside.start):
            found += _bucketed(inside, start, (end - start) / count, count)
    return found


def _seconds(spans: Spans) -> tuple[float, float]:
    """Return in how many seconds a track did work, and in how many it was in any state."""
    table = np.bincount(spans.state, spans.end - spans.start, len(_STATES))
    return float(table @ _IS_WORK), float(table.sum())


def _fraction(part: float, whole: float) -> float | None:
    return round(min(1.0, part / whole), 4) if whole > 0 else None


def _order(name: tuple[str, str, int]) -> tuple[Any, ...]:
    """Sort machines before workers, and m2 before m10."""
    kind, text, place = name
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]
    return (kind, parts, place)


def _exact(spans: Spans) -> list[tuple[float, float, int, int]]:
    columns = (spans.start.round(3), spans.end.round(3), spans.state, spans.execution)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _bucketed(spans: Spans, low: float, width: float, buckets: int) -> list[tuple[float, float, int, int]]:
    """Return one span for each sequence of buckets in which the same state took most of the time."""
    state = _main_states((spans.start - low) / width, (spans.end - low) / width, spans.state, buckets)
    middles = low + (np.arange(buckets) + 0.5) * width
    index = np.searchsorted(spans.start, middles, "right") - 1
    inside = (index >= 0) & (spans.end[index] > middles)
    execution = np.where(inside, spans.execution[index], 0)
    # An execution that is shorter than a few buckets cannot be pointed at; without its number, buckets can be merged.
    same = execution[1:] == execution[:-1]
    execution[~(np.append(same, False) | np.insert(same, 0, False))] = 0
    execution[state == _IDLE] = 0
    changes = np.flatnonzero((state[1:] != state[:-1]) | (execution[1:] != execution[:-1])) + 1
    firsts, lasts = np.insert(changes, 0, 0), np.append(changes, buckets)
    kept = state[firsts] != _IDLE
    columns = (
        (low + firsts[kept] * width).round(3),
        (low + lasts[kept] * width).round(3),
        state[firsts][kept],
        execution[firsts][kept],
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _edges(start: float, end: float, count: int) -> list[float]:
    """Return where equal parts of a time begin, and its end."""
    edges: list[float] = np.linspace(start, end, count + 1).round(3).tolist()
    return edges


def _main_states(start: Numbers, end: Numbers, state: Numbers, buckets: int) -> Numbers:
    """Return the state that took most of each bucket; `_IDLE` if nothing did. Times are in buckets."""
    taken = _taken_by_bucket(start, end, state, buckets)
    idle = 1.0 - taken.sum(axis=0)
    return np.asarray(np.vstack([taken, idle]).argmax(axis=0), np.uint8)


def _taken_by_bucket(start: Numbers, end: Numbers, state: Numbers, buckets: int) -> Numbers:
    """Return for each state and bucket how much of the bucket it took. Times are in buckets."""
    size, states = buckets + 1, len(_STATES)
    first = np.clip(start.astype(np.int64), 0, buckets - 1)
    last = np.clip(end.astype(np.int64), 0, buckets - 1)
    row = state.astype(np.int64) * size
    within = first == last
    parts = np.bincount(row + first, np.where(within, end - start, first + 1 - start), states * size)
    parts += np.bincount(row + last, np.where(within, 0.0, end - last), states * size)
    # Buckets between the first and the last are full: +1 where that begins and -1 where it ends, then summed up.
    edges = np.bincount(row + first + 1, ~within * 1.0, states * size) - np.bincount(
        row + last, ~within * 1.0, states * size
    )
    return np.asarray((parts.reshape(states, size) + edges.reshape(states, size).cumsum(axis=1))[:, :buckets])
