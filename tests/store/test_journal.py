"""What is owed is what has no final result, whatever was recorded in whatever order, and however often the file was reopened."""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paragent.errors import RunBusy, StoreFailed, UsageError
from paragent.store import (
    PRICES,
    Journal,
    RolloutResult,
    RolloutStatus,
    RunDirectory,
    StoredTask,
    find_runs,
    images_folder,
    summarise,
)
from paragent.store.compare import compare
from paragent.store.export import FORMATS, export
from paragent.store.records import pack_trajectory, unpack_trajectory
from paragent.store.summary import pass_at

TASKS = ["a", "b", "c", "d"]
FINAL = [RolloutStatus.COMPLETED, RolloutStatus.FAILED, RolloutStatus.TIMED_OUT]


def tasks(names: list[str] = TASKS) -> list[StoredTask]:
    return [StoredTask(name, name * 2, {"id": name, "question": "?", "answer": "42", "metadata": {}}) for name in names]


def play(task: str, attempt: int = 1, status: RolloutStatus = RolloutStatus.COMPLETED, **more: object) -> RolloutResult:
    trajectory = pack_trajectory({"messages": [{"role": "user", "content": task}]})
    return RolloutResult(task, attempt, status, trajectory=trajectory, **more)  # type: ignore[arg-type]


step = st.tuples(
    st.sampled_from(TASKS), st.integers(1, 2), st.sampled_from(list(RolloutStatus)), st.booleans(), st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(step, max_size=4), max_size=8))
def test_the_plan_is_the_tasks_without_a_final_result(
    batches: list[list[tuple[str, int, RolloutStatus, bool, bool]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        journal = Journal(path)
        journal.add_tasks(tasks())
        final: dict[tuple[str, int], RolloutStatus] = {}
        plays: dict[tuple[str, int], int] = {}
        for batch in batches:
            recorded = []
            seen = set()
            for task, attempt, status, decides, reopen in batch:
                key = (task, attempt)
                if key in final or key in seen:
                    continue  # the plan never has it played again
                seen.add(key)
                recorded.append(play(task, attempt, status, decides=decides or status in FINAL))
                plays[key] = plays.get(key, 0) + 1
                if status in FINAL:
                    final[key] = status
                if reopen:
                    journal.close()
                    journal = Journal(path)
            journal.record(recorded)
        owed = [(rollout.task, rollout.attempt) for rollout in journal.owed(2)]
        assert owed == [(task, attempt) for attempt in (1, 2) for task in TASKS if (task, attempt) not in final]
        assert {(r.task, r.attempt): r.plays for r in journal.owed(2)} == {key: plays.get(key, 0) for key in owed}
        assert journal.count_owed(2) == len(owed)
        decided = [(p.task, p.attempt) for _, p in journal.results()]
        assert len(decided) == len(set(decided))
        journal.close()


def test_a_rollout_cannot_have_two_results(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.record([play("a")])
        with pytest.raises(StoreFailed, match="safe"):
            journal.record([play("b"), play("a")])
        assert [p.task for _, p in journal.results()] == ["a"]


def test_a_batch_that_is_recorded_again_is_recorded_once(tmp_path: Path) -> None:
    """An interrupt between the commit and what follows it: the same plays are recorded again, maybe with others."""
    with Journal(tmp_path / "j") as journal:
        journal.record([play("a", status=RolloutStatus.INFRASTRUCTURE)])
        first = [play("a", score=1.0), play("b", score=0.5), play("c", decides=False)]
        undecided = set(journal._undecided)
        journal.record(first)
        journal._undecided = undecided  # as if it had been interrupted right after the commit
        journal.record([*first, play("d", score=0.0)])
        assert [(p.task, p.score) for _, p in journal.results()] == [("a", 1.0), ("b", 0.5), ("d", 0.0)]
        assert journal.rows("SELECT count(*) FROM plays") == [(5,)]
        assert journal.rows("SELECT count(*) FROM trajectories") == [(5,)]


def kept_of(bad: RolloutResult, folder: Path) -> RolloutResult:
    """Return what is kept of a play, recorded in a batch with others that must not suffer from it."""
    directory = RunDirectory(folder / "run")
    directory.open({}, "x")
    directory.journal.add_tasks(tasks())
    batch = [play("a", score=1.0), bad, play("c", score=0.5)]
    directory.keep_files(batch)
    directory.journal.record(batch)
    directory.append_results(batch)
    kept = {p.task: p for _, p in directory.journal.results()}
    assert [kept[name].score for name in "ac"] == [1.0, 0.5]
    [number] = [number for number, one in directory.journal.results() if one.task == "b"]
    kept["b"].trajectory = directory.journal.trajectory(number)
    directory.finish(summarise(directory.journal, 1))
    directory.close()
    reopened = RunDirectory(folder / "run")
    assert reopened.open({}, "x")
    reopened.close()
    return kept["b"]


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


@pytest.mark.parametrize(("values", "kept"), PARTLY_STORABLE, ids=str)
def test_a_value_that_cannot_be_stored_is_left_out_and_the_rest_of_the_result_is_kept(
    values: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    bad = play("b", files={"a.png": b"png"}, **(WHOLE | values))
    found = kept_of(bad, tmp_path)
    assert {name: getattr(found, name) for name in WHOLE} == WHOLE | kept
    assert (found.status, found.kind) == (RolloutStatus.COMPLETED, "")
    assert next(iter(values)) in found.error or "f1" in found.error
    trajectory: Any = found.trajectory
    assert trajectory["messages"][0]["content"] == "b"
    assert (images_folder(tmp_path / "run", "b", 1) / "a.png").read_bytes() == b"png"


@pytest.mark.parametrize("score", [float("nan"), float("-inf"), "high", [1]], ids=str)
def test_a_deciding_score_that_is_no_number_fails_the_play_and_keeps_what_it_used(
    score: object, tmp_path: Path
) -> None:
    found = kept_of(play("b", **(WHOLE | {"score": score, "scores": {"f1": 0.5, "em": score}})), tmp_path)
    wanted = WHOLE | {"score": None, "scores": {"f1": 0.5, "em": None}}
    assert {name: getattr(found, name) for name in WHOLE} == wanted
    assert (found.status, found.kind) == (RolloutStatus.FAILED, "unstorable")
    assert found.error.startswith("the result cannot be stored: ")
    assert found.trajectory is not None
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        summary = summarise(journal, 1)
    assert (summary.failures, summary.prompt_tokens, summary.requests) == ({"unstorable": 1}, 10, 4)


def test_files_and_trajectories_that_are_not_bytes_are_left_out(tmp_path: Path) -> None:
    bad = play("b", **WHOLE)
    bad.trajectory = 7  # type: ignore[assignment]
    bad.files = {"a.png": "no bytes", "b.png": b"png"}  # type: ignore[dict-item]
    found = kept_of(bad, tmp_path)
    assert (found.status, found.score, found.trajectory) == (RolloutStatus.COMPLETED, 1.0, None)
    assert "a.png" in found.error
    assert "trajectory" in found.error
    assert [path.name for path in images_folder(tmp_path / "run", "b", 1).iterdir()] == ["b.png"]


def test_an_error_that_is_not_text_is_replaced(tmp_path: Path) -> None:
    found = kept_of(play("b", status=RolloutStatus.FAILED, kind="ValueError", error=None), tmp_path)
    assert (found.status, found.kind) == (RolloutStatus.FAILED, "ValueError")
    assert "error: of type NoneType" in found.error


def test_further_scores_that_are_no_numbers_are_none(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.record([play(name) for name in TASKS])
        values: list[object] = [0.5, float("nan"), float("inf"), "high"]
        journal.set_scores("m", [(number, values[number - 1]) for number, _ in journal.results()])  # type: ignore[misc]
        assert [p.scores["m"] for _, p in journal.results()] == [0.5, None, None, None]


def test_lone_surrogates_do_not_reach_the_disk(tmp_path: Path) -> None:
    bad, good = "left \ud800 right", "left \ufffd right"
    directory = RunDirectory(tmp_path / "run")
    directory.open({"note": bad}, "x")
    directory.journal.add_tasks([StoredTask("a", "d", {"id": "a", "question": bad, "answer": {bad: [bad]}})])
    trajectory = pack_trajectory({"messages": [{"role": "user", "content": bad}]})
    one = RolloutResult(
        "a", 1, RolloutStatus.COMPLETED, answer=bad, error=bad, ending=bad, worker=bad, trajectory=trajectory
    )
    one.scores, one.files = {bad: 1.0}, {f"{bad}.png": b"png"}
    directory.keep_files([one])
    directory.journal.record([one])
    directory.append_results([one])
    directory.finish(summarise(directory.journal, 1))
    [(number, kept)] = directory.journal.results()
    assert (kept.answer, kept.error, kept.ending, kept.worker, kept.scores) == (good, good, good, good, {good: 1.0})
    assert directory.journal.trajectory(number)["messages"][0]["content"] == good
    stored = directory.journal.task("a")
    assert stored is not None
    assert stored.body["question"] == good
    assert (images_folder(tmp_path / "run", "a", 1) / f"{good}.png").exists()
    for form in FORMATS.names():
        assert export(directory.journal, form, tmp_path / form) == 1
    directory.close()


def test_a_trajectory_that_is_not_json_is_replaced_by_the_reason() -> None:
    circle: list[object] = []
    circle.append(circle)
    for body in ({("a", "tuple"): 1}, circle):
        assert "unstorable" in unpack_trajectory(pack_trajectory(body))
    assert unpack_trajectory(pack_trajectory({"x": {1, 2}})) == {"x": "{1, 2}"}


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


def test_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    """What a killed process leaves says nothing about a power cut: for that SQLite has to sync with every commit."""
    with Journal(tmp_path / "j") as journal:
        assert journal.rows("PRAGMA journal_mode") == [("wal",)]
        assert journal.rows("PRAGMA synchronous") == [(2,)], "FULL"


def test_what_has_many_pages_is_read_to_the_end(tmp_path: Path) -> None:
    names = [str(number) for number in range(1_201)]
    with Journal(tmp_path / "j") as journal:
        journal.add_tasks(tasks(names))
        assert [(owed.task, owed.attempt) for owed in journal.owed(2)] == [(n, k) for k in (1, 2) for n in names]
        assert [task.id for task in journal.tasks()] == names
        journal.record([RolloutResult(name, 1, RolloutStatus.COMPLETED) for name in names])
        assert [p.task for _, p in journal.results()] == names
        assert [(owed.task, owed.attempt) for owed in journal.owed(2)] == [(name, 2) for name in names]


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    with sqlite3.connect(tmp_path / "j") as database:
        database.execute("UPDATE meta SET value = '0' WHERE key = 'version'")
    database.close()
    for read_only in (False, True):
        with pytest.raises(StoreFailed, match="another version"):
            Journal(tmp_path / "j", read_only=read_only)


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.record([play("a")])
        pages = journal.rows("PRAGMA page_count")[0][0]
        journal.rows(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StoreFailed, match="full"):
            journal.record([play(str(n), answer="x" * 5000) for n in range(50)])
        journal.rows("PRAGMA max_page_count = 1000000")
        journal.record([play("b")])
        assert [p.task for _, p in journal.results()] == ["a", "b"]


def test_statistics_count_failures_as_zero_and_show_both_means(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.add_tasks(tasks())
        journal.record([play("a", score=1.0, prompt_tokens=10, completion_tokens=5), play("b", score=0.0)])
        journal.record([play("c", status=RolloutStatus.FAILED, kind="ValueError")])
        journal.record([play("d", status=RolloutStatus.INFRASTRUCTURE, kind="endpoint")])
        assert summarise(journal, 1).cost is None, "without prices it is unknown, not 0"
        journal.set_meta(PRICES, '{"model": {"input": 2.0, "output": 4.0}}')
        summary = summarise(journal, 1)
        assert (summary.mean, summary.mean_of_played) == (1 / 4, 1 / 3)
        assert summary.failures == {"ValueError": 1, "endpoint": 1}
        assert (summary.done, summary.owed) == (4, 1)
        assert summary.cost == pytest.approx((10 * 2 + 5 * 4) / 1e6)
        journal.record([play("d", score=1.0, prompt_tokens=None)])
        summary = summarise(journal, 1)
        assert (summary.mean, summary.mean_of_played, summary.owed, summary.plays) == (0.5, 0.5, 0, 5)
        assert summary.cost is None
        assert summary.prompt_tokens is None


def test_completed_rollouts_without_a_score_are_counted_where_one_was_to_be_expected(tmp_path: Path) -> None:
    with Journal(tmp_path / "references") as journal:
        journal.add_tasks(tasks())
        journal.record([play("a"), play("b", score=0.0), play("c", status=RolloutStatus.FAILED)])
        assert summarise(journal, 1).unscored == 1
    with Journal(tmp_path / "none") as journal:
        journal.add_tasks([StoredTask(name, name, {"id": name, "question": "?", "answer": None}) for name in TASKS])
        journal.add_tasks([StoredTask("e", "e", {"id": "e", "question": "?", "answer": []})])
        journal.record([play("a"), play("e")])
        assert summarise(journal, 1).unscored == 0, "nothing can be scored"
        journal.record([play("b", score=1.0)])
        assert summarise(journal, 1).unscored == 2, "others were"


def test_pass_at_k() -> None:
    assert pass_at(1, 4, 1) == pytest.approx(0.25)
    assert pass_at(2, 4, 1) == pytest.approx(0.5)
    assert pass_at(4, 4, 1) == 1.0
    assert pass_at(3, 4, 0) == 0.0


def test_only_tasks_with_all_their_attempts_count_and_only_the_full_score(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.add_tasks(tasks())
        journal.record([play("a", 1, score=1.0), play("a", 2, score=0.9), play("b", 1, score=0.5), play("b", 2)])
        journal.record([play("c", 1, score=1.0)])
        assert summarise(journal, 2).pass_at == {1: pytest.approx(0.25), 2: pytest.approx(0.5)}


def test_one_process_at_a_time_and_one_configuration(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    assert first.open({}, "x") is False
    with pytest.raises(RunBusy, match="being played by process"):
        second.open({}, "x")
    with pytest.raises(RunBusy, match="being played by process"):
        second.open({}, "x", fresh=True)
    first.journal.record([play("a")])
    first.close()
    with pytest.raises(UsageError, match="other settings"):
        second.open({}, "y")
    assert second.open({}, "x") is True
    second.close()
    assert second.open({}, "y", fresh=True) is False
    second.close()
    assert {path.name for path in find_runs(tmp_path)} == {"run", "run~1"}


def test_what_workers_of_an_earlier_session_were_doing_is_forgotten(tmp_path: Path) -> None:
    for _ in range(2):
        with RunDirectory(tmp_path / "run") as directory:
            directory.open({}, "x")
            directory.forget_live()
            assert list(directory.live.iterdir()) == []
            (directory.live / "worker").write_text("playing")


def test_ids_of_any_length_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = {images_folder(tmp_path, "x" * 400 + last, 1) for last in "ab"}
    assert len(folders) == 2
    for folder in folders:
        folder.mkdir(parents=True)


def test_a_torn_results_file_is_made_whole(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.open({}, "x")
        directory.journal.record([play("a", score=1.0), play("b")])
        directory.append_results([play("a", score=1.0)])
    path = tmp_path / "run" / "results.jsonl"
    path.write_text(path.read_text()[:-20])
    with RunDirectory(tmp_path / "run") as directory:
        directory.open({}, "x")
    assert [json.loads(line)["task"] for line in path.read_text().splitlines()] == ["a", "b"]


@pytest.mark.parametrize("form", FORMATS.names())
def test_every_result_is_exported(form: str, tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.add_tasks(tasks())
        journal.record([play("a", score=1.0), play("b", status=RolloutStatus.FAILED, error="no")])
        assert export(journal, form, tmp_path / "out" / "x") == 2
    if form == "osworld":
        assert (tmp_path / "out/x/default/a/result.txt").read_text() == "1.0\n"
    elif form == "openai-chat":
        first = json.loads((tmp_path / "out/x").read_text().splitlines()[0])
        assert first["messages"] == [{"role": "user", "content": "a"}]


def test_runs_are_compared_task_by_task() -> None:
    found = compare({"a": 1.0, "b": 0.0, "c": 0.0}, {"a": 1.0, "b": 1.0, "d": 1.0})
    assert found is not None
    assert (found.pairs, found.difference, found.better, found.worse) == (2, 0.5, [("b", 0.0, 1.0)], [])
    assert (found.only_a, found.only_b) == (1, 1)
    margin = 1.959964 * 0.5  # the differences are 0 and 1: their standard deviation is 0.707, over the root of two
    assert found.interval == pytest.approx((0.5 - margin, 0.5 + margin))
    assert compare({"a": 1.0}, {"b": 1.0}) is None


IDS = st.text(st.characters(codec=None) | st.sampled_from("/._\0a"), min_size=1, max_size=80) | st.builds(
    str.__mul__, st.sampled_from(["ü", "日", "a", "😀"]), st.integers(1, 300)
)


@given(st.lists(IDS, min_size=2, max_size=6, unique=True))
def test_every_id_has_a_folder_of_its_own_inside_the_run(ids: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        folders = [images_folder(Path(folder), one, 1) for one in ids]
        assert len(set(folders)) == len(ids)
        for one in folders:
            one.mkdir(parents=True)
            assert one.resolve().parents[1] == Path(folder).resolve() / "images"


def interval_of(scores: dict[str, list[float]], tmp_path: Path) -> tuple[float, float]:
    """Return mean and margin of a run in which each task has these scores, one for each attempt."""
    with Journal(tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite") as journal:
        journal.add_tasks(tasks(list(scores)))
        journal.record(
            [play(task, n, score=score) for task, all_of in scores.items() for n, score in enumerate(all_of, 1)]
        )
        summary = summarise(journal, max(map(len, scores.values())))
    assert summary.mean is not None
    assert summary.interval is not None
    assert summary.standard_error is not None
    assert summary.interval[1] - summary.mean == pytest.approx(1.959964 * summary.standard_error)
    return summary.mean, summary.interval[1] - summary.mean


def test_more_attempts_that_say_the_same_make_nobody_surer(tmp_path: Path) -> None:
    once = {f"t{n}": [float(n % 5 == 0)] for n in range(50)}
    assert interval_of({task: scores * 4 for task, scores in once.items()}, tmp_path) == pytest.approx(
        interval_of(once, tmp_path)
    )


def test_the_interval_is_the_textbook_one_for_one_attempt_and_for_means_of_tasks(tmp_path: Path) -> None:
    single = {"a": [1.0], "b": [0.0], "c": [0.5], "d": [0.0]}
    error = statistics.stdev([1.0, 0.0, 0.5, 0.0]) / 2
    assert interval_of(single, tmp_path) == pytest.approx((0.375, 1.959964 * error))
    several = {"a": [1.0, 1.0, 0.0], "b": [0.0, 0.0, 0.0], "c": [1.0, 0.0, 0.0]}
    error = statistics.stdev([2 / 3, 0.0, 1 / 3]) / 3**0.5
    assert interval_of(several, tmp_path) == pytest.approx((1 / 3, 1.959964 * error))


def test_one_task_has_no_interval(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.add_tasks(tasks(["a"]))
        journal.record([play("a", 1, score=1.0), play("a", 2, score=0.0)])
        assert summarise(journal, 2).interval is None


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("this is no database, whatever its name says, and it is long enough to see it" * 20)
    with pytest.raises(StoreFailed):
        Journal(tmp_path / "j")
