"""The journal, the run directory, statistics and exports."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paragent.errors import RunBusy, StoreFailed, UsageError
from paragent.store import (
    JOURNAL_FILE,
    Journal,
    RolloutResult,
    RolloutStatus,
    RunDirectory,
    find_runs,
    images_folder,
    summarise,
)
from paragent.store.formats import FORMATS, export
from paragent.store.records import NewScore, pack_trajectory, unpack_trajectory
from paragent.tasks import BenchmarkTask

TASKS = ["a", "b", "c", "d"]
FINAL = [status for status in RolloutStatus if status is not RolloutStatus.INFRASTRUCTURE]


def tasks(names: list[str] = TASKS) -> list[BenchmarkTask]:
    return [BenchmarkTask(name, "?", "42") for name in names]


def result(
    task: str, attempt: int = 1, status: RolloutStatus = RolloutStatus.COMPLETED, **more: object
) -> RolloutResult:
    trajectory = pack_trajectory({"messages": [{"role": "user", "content": task}]})
    return RolloutResult(task, attempt, status, trajectory=trajectory, **more)  # type: ignore[arg-type]


step = st.tuples(
    st.sampled_from(TASKS), st.integers(1, 2), st.sampled_from(list(RolloutStatus)), st.booleans(), st.booleans()
)


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.lists(step, max_size=4), max_size=8))
def test_pending_rollouts_are_those_without_a_final_result(
    batches: list[list[tuple[str, int, RolloutStatus, bool, bool]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        journal = Journal(path)
        journal.add_tasks(tasks())
        done: set[tuple[str, int]] = set()
        for batch in batches:
            recorded = []
            seen = set()
            for task, attempt, status, final, reopen in batch:
                key = (task, attempt)
                if key in done or key in seen:
                    continue  # it is not pending, so it is not executed again
                seen.add(key)
                recorded.append(result(task, attempt, status, final=final or status in FINAL))
                if status in FINAL:
                    done.add(key)
                if reopen:
                    journal.close()
                    journal = Journal(path)
            journal.record(recorded)
        pending = [(rollout.task.id, rollout.attempt) for rollout in journal.pending(2)]
        assert pending == [(task, attempt) for attempt in (1, 2) for task in TASKS if (task, attempt) not in done]
        assert journal.count_pending(2) == len(pending)
        final_results = [(one.task, one.attempt) for one in journal.results()]
        assert len(final_results) == len(set(final_results))
        journal.close()


def test_a_rollout_cannot_have_two_results(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.record([result("a")])
        with pytest.raises(StoreFailed, match="safe"):
            journal.record([result("b"), result("a")])
        assert [one.task for one in journal.results()] == ["a"]


class InterruptedAfterCommit(list[RolloutResult]):
    """A batch whose third iteration, which `record` does after its commit, is interrupted."""

    def __init__(self, results: list[RolloutResult]) -> None:
        super().__init__(results)
        self.iterations = 0

    def __iter__(self) -> Iterator[RolloutResult]:
        self.iterations += 1
        if self.iterations == 3:
            raise KeyboardInterrupt
        return super().__iter__()


def test_a_batch_that_is_recorded_again_is_stored_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.record([result("a", status=RolloutStatus.INFRASTRUCTURE)])
        first = [result("a", score=1.0), result("b", score=0.5), result("c", final=False)]
        with pytest.raises(KeyboardInterrupt):
            journal.record(InterruptedAfterCommit(first))
        assert journal.rows("SELECT count(*) FROM results") == [(4,)], "the interrupt came after the commit"
        journal.record([*first, result("d", score=0.0)])
        assert [(one.task, one.score) for one in journal.results()] == [("a", 1.0), ("b", 0.5), ("d", 0.0)]
        assert journal.rows("SELECT count(*) FROM results") == [(5,)]
        assert journal.rows("SELECT count(*) FROM trajectories") == [(5,)]


def stored_form_of(bad: RolloutResult, folder: Path) -> RolloutResult:
    """Return a result as it is stored, recorded in a batch with others that must not be affected by it."""
    directory = RunDirectory(folder / "run")
    directory.open({}, "x")
    directory.journal.add_tasks(tasks())
    batch = [result("a", score=1.0), bad, result("c", score=0.5)]
    directory.write_files(batch)
    directory.journal.record(batch)
    directory.append_results(batch)
    stored = {one.task: one for one in directory.journal.results()}
    assert [stored[name].score for name in "ac"] == [1.0, 0.5]
    stored["b"].trajectory = directory.journal.trajectory(stored["b"].number)
    directory.finish(summarise(directory.journal, 1))
    directory.close()
    reopened = RunDirectory(folder / "run")
    assert reopened.open({}, "x")
    reopened.close()
    return stored["b"]


WHOLE: dict[str, Any] = {
    "score": 1.0,
    "scores": {"f1": 0.5, "em": 1.0},
    "answer": "42",
    "turns": 3,
    "requests": 4,
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "seconds": 2.5,
    "worker": "host:1",
}
PARTLY_STORABLE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"answer": ["a", "list"]}, {"answer": None}),
    ({"answer": 7}, {"answer": None}),
    ({"prompt_tokens": 2**64}, {"prompt_tokens": None}),
    ({"turns": "many"}, {"turns": 0}),
    ({"scores": {"f1": float("inf"), "em": 1.0}}, {"scores": {"f1": None, "em": 1.0}}),
    ({"scores": {"f1": float("nan"), "em": 1.0}}, {"scores": {"f1": None, "em": 1.0}}),
    ({"scores": {"f1": [1], "em": 1.0}}, {"scores": {"f1": None, "em": 1.0}}),
    ({"scores": None}, {"scores": {}}),
    ({"seconds": float("nan")}, {"seconds": 0.0}),
    ({"worker": 7}, {"worker": ""}),
]


@pytest.mark.parametrize(("values", "stored"), PARTLY_STORABLE, ids=str)
def test_a_value_that_cannot_be_stored_is_dropped_and_the_rest_is_stored(
    values: dict[str, Any], stored: dict[str, Any], tmp_path: Path
) -> None:
    bad = result("b", files={"a.png": b"png"}, **(WHOLE | values))
    found = stored_form_of(bad, tmp_path)
    assert {name: getattr(found, name) for name in WHOLE} == WHOLE | stored
    assert (found.status, found.kind) == (RolloutStatus.COMPLETED, "")
    assert next(iter(values)) in found.error or "f1" in found.error
    trajectory: Any = found.trajectory
    assert trajectory["messages"][0]["content"] == "b"
    assert (images_folder(tmp_path / "run", "b", 1) / "a.png").read_bytes() == b"png"


@pytest.mark.parametrize("score", [float("nan"), float("-inf"), "high", [1]], ids=str)
def test_a_score_that_is_not_a_number_is_a_failure_of_the_scorer(score: object, tmp_path: Path) -> None:
    found = stored_form_of(result("b", **(WHOLE | {"score": score, "scores": {"f1": 0.5, "em": score}})), tmp_path)
    wanted = WHOLE | {"score": None, "scores": {"f1": 0.5, "em": None}}
    assert {name: getattr(found, name) for name in WHOLE} == wanted
    assert (found.status, found.kind) == (RolloutStatus.UNSCORED, "scoring")
    assert found.error.startswith("the result cannot be stored: ")
    assert found.trajectory is not None
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        summary = summarise(journal, 1)
    assert (summary.failures, summary.prompt_tokens, summary.requests) == ({"scoring": 1}, 10, 4)


def test_files_and_trajectories_that_are_not_bytes_are_dropped(tmp_path: Path) -> None:
    bad = result("b", **WHOLE)
    bad.trajectory = 7  # type: ignore[assignment]
    bad.files = {"a.png": "no bytes", "b.png": b"png"}  # type: ignore[dict-item]
    found = stored_form_of(bad, tmp_path)
    assert (found.status, found.score, found.trajectory) == (RolloutStatus.COMPLETED, 1.0, None)
    assert "a.png" in found.error
    assert "trajectory" in found.error
    assert [path.name for path in images_folder(tmp_path / "run", "b", 1).iterdir()] == ["b.png"]


def test_an_error_that_is_not_text_is_replaced(tmp_path: Path) -> None:
    found = stored_form_of(result("b", status=RolloutStatus.FAILED, kind="ValueError", error=None), tmp_path)
    assert (found.status, found.kind) == (RolloutStatus.FAILED, "ValueError")
    assert "error: of type NoneType" in found.error


def test_added_scores_that_are_not_finite_numbers_are_none(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.record([result(name) for name in TASKS])
        values: list[object] = [0.5, float("nan"), float("inf"), "high"]
        numbers = [one.number or 0 for one in journal.results()]
        journal.set_scores("m", [NewScore(number, values[number - 1]) for number in numbers])  # type: ignore[arg-type]
        assert [one.scores["m"] for one in journal.results()] == [0.5, None, None, None]


def test_lone_surrogates_are_replaced_in_all_files(tmp_path: Path) -> None:
    bad, good = "left \ud800 right", "left \ufffd right"
    directory = RunDirectory(tmp_path / "run")
    directory.open({"note": bad}, "x")
    directory.journal.add_tasks([BenchmarkTask("a", bad, {bad: [bad]})])
    trajectory = pack_trajectory({"messages": [{"role": "user", "content": bad}]})
    one = RolloutResult(
        "a", 1, RolloutStatus.COMPLETED, answer=bad, error=bad, ending=bad, worker=bad, trajectory=trajectory
    )
    one.scores, one.files = {bad: 1.0}, {f"{bad}.png": b"png"}
    directory.write_files([one])
    directory.journal.record([one])
    directory.append_results([one])
    directory.finish(summarise(directory.journal, 1))
    [stored] = directory.journal.results()
    texts = (stored.answer, stored.error, stored.ending, stored.worker, stored.scores)
    assert texts == (good, good, good, good, {good: 1.0})
    assert directory.journal.trajectory(stored.number)["messages"][0]["content"] == good
    task = directory.journal.task("a")
    assert task is not None
    assert (task.question, task.answer) == (good, {good: [good]})
    assert (images_folder(tmp_path / "run", "a", 1) / f"{good}.png").exists()
    for form in FORMATS.names():
        done = export(directory.journal, form, tmp_path / form)
        assert done.written + sum(one.count for one in done.left_out.values()) == 1
    directory.close()


def test_a_trajectory_that_is_not_json_is_replaced_by_the_error() -> None:
    circle: list[object] = []
    circle.append(circle)
    for body in ({("a", "tuple"): 1}, circle):
        assert "unstorable" in unpack_trajectory(pack_trajectory(body))
    assert unpack_trajectory(pack_trajectory({"x": {1, 2}})) == {"x": "{1, 2}"}
    tokens = [{"token_ids": [1], "mask": [1], "turns": []}]
    found = unpack_trajectory(pack_trajectory({"messages": [circle], "steps": [], "tokens": tokens}))
    assert found["tokens"] == tokens, "training needs them, whatever the agent has sent"


def test_a_batch_is_durable_when_record_returns(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from paragent.store import *\n"
        "results = [RolloutResult(str(n), 1, RolloutStatus.COMPLETED) for n in range(500)]\n"
        "journal = Journal(Path(sys.argv[1])); journal.record(results)\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "j")], check=False, timeout=60)
    with Journal(tmp_path / "j") as journal:
        assert sum(1 for _ in journal.results()) == 500


def test_commits_are_synced_to_disk(tmp_path: Path) -> None:
    """A killed process does not show this: surviving a power failure requires an fsync with every commit."""
    with Journal(tmp_path / "j") as journal:
        assert journal.rows("PRAGMA journal_mode") == [("wal",)]
        assert journal.rows("PRAGMA synchronous") == [(2,)], "FULL"


def test_iterations_read_all_pages(tmp_path: Path) -> None:
    names = [str(number) for number in range(1_201)]
    with Journal(tmp_path / "j") as journal:
        journal.add_tasks(tasks(names))
        assert [(one.task.id, one.attempt) for one in journal.pending(2)] == [(n, k) for k in (1, 2) for n in names]
        assert [task.id for task in journal.tasks()] == names
        journal.record([RolloutResult(name, 1, RolloutStatus.COMPLETED) for name in names])
        assert [one.task for one in journal.results()] == names
        assert [(one.task.id, one.attempt) for one in journal.pending(2)] == [(name, 2) for name in names]


def test_a_journal_with_another_format_version_is_rejected(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    with sqlite3.connect(tmp_path / "j") as database:
        database.execute("UPDATE meta SET value = '0' WHERE key = 'version'")
    database.close()
    for read_only in (False, True):
        with pytest.raises(StoreFailed, match="format version 0"):
            Journal(tmp_path / "j", read_only=read_only)


def test_a_full_disk_does_not_damage_earlier_results(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.record([result("a")])
        pages = journal.rows("PRAGMA page_count")[0][0]
        journal.rows(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StoreFailed, match="full"):
            journal.record([result(str(n), answer="x" * 5000) for n in range(50)])
        journal.rows("PRAGMA max_page_count = 1000000")
        journal.record([result("b")])
        assert [one.task for one in journal.results()] == ["a", "b"]


def test_a_run_directory_is_locked_and_bound_to_its_settings(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    assert first.open({}, "x") is False
    with pytest.raises(RunBusy, match="in use by process"):
        second.open({}, "x")
    with pytest.raises(RunBusy, match="in use by process"):
        second.open({}, "x", fresh=True)
    first.journal.record([result("a")])
    first.close()
    with pytest.raises(UsageError, match="other settings"):
        second.open({}, "y")
    assert second.open({}, "x") is True
    second.close()
    assert second.open({}, "y", fresh=True) is False
    second.close()
    assert {path.name for path in find_runs(tmp_path)} == {"run", "run~1"}


def test_fresh_renames_no_live_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rename, tried = tmp_path / "run", Path.rename, []
    with RunDirectory(path) as old:
        old.open({}, "x")

    def start_another(self: Path, target: Path) -> Path:
        with pytest.raises(RunBusy, match="in use"):
            RunDirectory(path).open({}, "x")
        tried.append(self)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", start_another)
    with RunDirectory(path) as new:
        assert new.open({}, "y", fresh=True) is False
        with pytest.raises(RunBusy, match="in use"):
            RunDirectory(path).open({}, "y")
    assert tried == [path]


def test_the_lock_of_a_renamed_run_is_not_the_lock_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / "run", fcntl.flock
    with RunDirectory(path) as old:
        old.open({}, "x")
    new = RunDirectory(path)

    def start_new_run_first(lock: int, operation: int) -> None:
        """Between the opening and the locking of the file, another process renames the directory."""
        monkeypatch.undo()
        new.open({}, "y", fresh=True)
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", start_new_run_first)
    with new, pytest.raises(RunBusy, match="renamed by another process"):
        RunDirectory(path).open({}, "x")


def test_a_named_pipe_in_a_run_of_somebody_else_is_not_opened(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.open({}, "x")
        directory.journal.add_tasks(tasks())
        directory.journal.record([result("a")])
    (tmp_path / "run/config.json").unlink()
    os.mkfifo(tmp_path / "run/config.json")
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        for name in FORMATS.names():
            if name != "parquet":
                assert export(journal, name, tmp_path / f"out-{name}", reasoning=True)
    with pytest.raises(UsageError, match="other settings"), RunDirectory(tmp_path / "run") as again:
        again.open({}, "y")


def test_a_large_trajectory_in_a_few_bytes_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zlib.compress(b'{"messages": "' + b"x" * 1_000_000 + b'"}')
    many = zlib.compress(b'{"messages": [' + b"[]," * 100_000 + b"[]]}")
    monkeypatch.setattr("paragent.store.records._LARGEST_TRAJECTORY", 900_000)
    monkeypatch.setattr("paragent.store.records._MOST_VALUES", 100_000)
    with pytest.raises(ValueError, match="larger than 900,000 bytes"):
        unpack_trajectory(packed)
    with pytest.raises(ValueError, match="more than 100,000 values"):
        unpack_trajectory(many)
    assert len(unpack_trajectory(packed, own=True)["messages"]) == 1_000_000
    assert len(unpack_trajectory(many, own=True)["messages"]) == 100_001


def test_status_files_of_earlier_sessions_are_removed(tmp_path: Path) -> None:
    for _ in range(2):
        with RunDirectory(tmp_path / "run") as directory:
            directory.open({}, "x")
            directory.clear_live()
            assert list(directory.live.iterdir()) == []
            (directory.live / "worker").write_text("working")


def test_long_ids_have_different_folders(tmp_path: Path) -> None:
    folders = {images_folder(tmp_path, "x" * 400 + last, 1) for last in "ab"}
    assert len(folders) == 2
    for folder in folders:
        folder.mkdir(parents=True)


def test_a_truncated_results_file_is_rewritten(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.open({}, "x")
        directory.journal.record([result("a", score=1.0), result("b")])
        directory.append_results([result("a", score=1.0)])
    path = tmp_path / "run" / "results.jsonl"
    path.write_text(path.read_text()[:-20])
    with RunDirectory(tmp_path / "run") as directory:
        directory.open({}, "x")
    assert [json.loads(line)["task"] for line in path.read_text().splitlines()] == ["a", "b"]


@pytest.mark.parametrize("form", FORMATS.names())
def test_every_result_is_exported(form: str, tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.add_tasks(tasks())
        journal.record([result("a", score=1.0), result("b", status=RolloutStatus.FAILED, error="no")])
        done = export(journal, form, tmp_path / "out" / "x")
        assert done.written == (0 if form == "trl" else 2), "no model replied, so there is nothing to train on"
    if form == "osworld":
        assert (tmp_path / "out/x/default/a/result.txt").read_text() == "1.0\n"
    elif form == "openai-chat":
        first = json.loads((tmp_path / "out/x").read_text().splitlines()[0])
        assert first["messages"] == [{"role": "user", "content": "a"}]


IDS = st.text(st.characters(codec=None) | st.sampled_from("/._\0a"), min_size=1, max_size=80) | st.builds(
    str.__mul__, st.sampled_from(["ü", "日", "a", "😀"]), st.integers(1, 300)
)


@given(st.lists(IDS, min_size=2, max_size=6, unique=True))
def test_different_ids_have_different_folders_inside_the_run(ids: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        folders = [images_folder(Path(folder), one, 1) for one in ids]
        assert len(set(folders)) == len(ids)
        for one in folders:
            one.mkdir(parents=True)
            assert one.resolve().parents[1] == Path(folder).resolve() / "images"


def test_a_file_that_is_not_a_journal_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("this file is not a database, and it is long enough to be recognised as such" * 20)
    with pytest.raises(StoreFailed):
        Journal(tmp_path / "j")


@pytest.mark.parametrize("content", ["damaged", "another version"])
def test_a_journal_that_cannot_be_opened_is_closed(content: str, tmp_path: Path) -> None:
    path = tmp_path / "j"
    if content == "damaged":
        path.write_text("this file is not a database, and it is long enough to be recognised as such" * 20)
    else:
        Journal(path).close()
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE meta SET value = '0' WHERE key = 'version'")
    with pytest.raises(StoreFailed) as caught:
        Journal(path)
    opened = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert path not in opened
    assert caught.value is not None  # its traceback keeps the journal alive until here


@pytest.fixture
def read_only_journal() -> Iterator[Path]:
    """A journal that this process may only read; root gives up its right to write everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / JOURNAL_FILE
        with Journal(path) as journal:
            journal.add_tasks([BenchmarkTask("a", "?")])
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        yield path
        os.seteuid(user)
        Path(folder).chmod(0o755)


def test_a_journal_in_a_folder_without_write_permission_can_be_read(read_only_journal: Path) -> None:
    with Journal(read_only_journal, read_only=True) as journal:
        assert journal.count_tasks() == 1
