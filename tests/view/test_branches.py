"""The view of branches, sampled tokens and imported runs."""

from __future__ import annotations

from pathlib import Path

from paragent.store.formats import export
from paragent.store.formats.importing import import_files
from paragent.testing.export_contract import sample_run
from paragent.view.runs import RunFolder, StoredRun
from paragent.view.transcripts import execution_detail, raw_calls


def number_of(run: StoredRun, task: str) -> int:
    with run.open() as journal:
        [(number,)] = journal.rows("SELECT number FROM results WHERE task = ? AND attempt = 1", [task])
    return int(number)


def test_the_messages_of_a_branch_follow_a_separator(tmp_path: Path) -> None:
    sample_run(tmp_path / "run").close()
    run = RunFolder(tmp_path).get("run")
    number = number_of(run, "branches")
    steps = execution_detail(run, number).steps
    [separator] = [step for step in steps if step.kind == "branch"]
    assert separator.text == "Branch 1: shares 2 messages with branch 0"
    after = [step for step in steps if step.index > separator.index and step.branch == 1]
    assert [(step.kind, step.text) for step in after] == [("user", "Again."), ("model", "43")]
    request = raw_calls(run, number)[after[1].index].request
    assert [message["content"] for message in request["messages"]] == ["Answer.", "What is 40 + 2?", "Again."]
    assert [step.branch for step in steps if step.kind == "score"] == [0]
    assert [step.text for step in steps if step.kind == "tool"] == ["42", "by the gateway"]


def test_sampled_tokens_are_counted_and_shown_with_the_raw_call(tmp_path: Path) -> None:
    sample_run(tmp_path / "run").close()
    run = RunFolder(tmp_path).get("run")
    number = number_of(run, "tokens")
    detail = execution_detail(run, number)
    [sequence] = detail.sequences
    assert (sequence.tokens, sequence.sampled, sequence.calls, sequence.logprobs) == (6, 3, 2, True)
    replies = [step for step in detail.steps if step.kind == "model"]
    assert [step.sampled_tokens for step in replies] == [1, 2]
    tokens = raw_calls(run, number)[replies[1].index].tokens
    assert tokens is not None
    assert (tokens.ids, tokens.logprobs, tokens.prompt, tokens.version) == ([5, 6], [-0.1, -2.0], 4, 8)
    assert execution_detail(run, number_of(run, "a")).sequences == []


def test_an_imported_run_is_marked_and_complete(tmp_path: Path) -> None:
    with sample_run(tmp_path / "run") as journal:
        export(journal, "inspect", tmp_path / "log.eval")
    import_files([tmp_path / "log.eval"], tmp_path / "imported")
    rows = {row.name: row for row in RunFolder(tmp_path).rows().runs}
    assert (rows["imported"].origin, rows["imported"].state) == ("imported", "complete")
    assert (rows["run"].origin, rows["run"].state) == ("", "stopped")
    assert rows["imported"].score == rows["run"].score
    assert (rows["imported"].started, rows["imported"].seconds) == (1_700_000_000.0, 3.0), (
        "of the rollouts, not of the import"
    )
    run = RunFolder(tmp_path).get("imported")
    assert execution_detail(run, number_of(run, "image")).steps[3].images
