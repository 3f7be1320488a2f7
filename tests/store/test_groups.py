"""Groups of training runs in the journal, and journals of the format version before them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent.errors import StoreFailed
from paragent.store import GroupState, GroupStore, Journal
from paragent.tasks import BenchmarkTask


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    return path


@pytest.fixture
def store(journal: Path) -> Iterator[GroupStore]:
    with contextlib.closing(GroupStore(journal)) as opened:
        yield opened


def tasks(*names: str) -> list[BenchmarkTask]:
    return [BenchmarkTask(name, "what?", "42", {"name": name}) for name in names]


def test_tasks_are_added_once_and_admitted_in_order(store: GroupStore) -> None:
    assert store.add(tasks("a", "b")) == 2
    assert store.add(tasks("b", "c")) == 1
    admitted = [store.admit(version) for version in (3, 4)]
    assert [(one.task.id, one.version) for one in admitted if one] == [("a", 3), ("b", 4)]
    assert store.admitted() == admitted
    assert store.counts()[GroupState.WAITING] == 1


def test_a_group_is_accepted_once(store: GroupStore) -> None:
    store.add(tasks("a"))
    assert not store.accept("a", "first", 0), "it is not admitted"
    store.admit(0)
    assert not store.accept("a", "", 7), "it is not delivered"
    store.deliver("a", "earlier")
    store.deliver("a", "first")
    assert not store.accept("a", "earlier", 7), "it was delivered again"
    assert store.accept("a", "first", 7)
    store.deliver("a", "second")
    assert not store.accept("a", "second", 8)
    assert store.is_accepted("a", "first")
    assert not store.is_accepted("a", "second")
    assert (store.accepted_with(7), store.accepted_with(8)) == (1, 0)
    store.drop("a", "too late")
    assert store.counts()[GroupState.ACCEPTED] == 1, "an accepted group cannot be dropped"


def test_a_group_is_accepted_durably(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **settings))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    with contextlib.closing(GroupStore(journal)) as store:
        store.add(tasks("a"))
        store.admit(0)
        store.deliver("a", "first")
        assert store.accept("a", "first", 0)
        assert [one.execute("PRAGMA synchronous").fetchone() for one in opened] == [(2,)], "FULL"


def test_the_state_survives_and_another_process_sees_it(store: GroupStore, journal: Path) -> None:
    store.add(tasks("a", "b"))
    store.admit(2)
    store.drop("a", "infrastructure")
    store.set_version(5)
    with contextlib.closing(GroupStore(journal)) as other:
        assert other.version() == 5
        assert other.counts()[GroupState.DROPPED] == 1
        assert other.admitted() == []


def test_a_journal_of_version_4_is_upgraded(journal: Path) -> None:
    with contextlib.closing(sqlite3.connect(journal)) as database:
        database.executescript(
            "DROP TABLE groups; ALTER TABLE results DROP COLUMN cached_replies; "
            "UPDATE meta SET value = '4' WHERE key = 'version'"
        )
    with Journal(journal, read_only=True) as opened:
        assert opened.meta("version") == "5"
    with contextlib.closing(GroupStore(journal)) as store:
        assert store.add(tasks("a")) == 1


def test_a_damaged_trajectory_is_named(store: GroupStore, journal: Path) -> None:
    with contextlib.closing(sqlite3.connect(journal)) as database:
        database.execute("INSERT INTO trajectories VALUES (1, ?)", [b"not compressed"])
        database.commit()
    with pytest.raises(StoreFailed, match="the trajectory of result 1"):
        store.trajectory(1)
    assert store.trajectory(2) is None
