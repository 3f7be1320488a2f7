"""Import: round trips, files of other tools, and files that attack."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from paragent._installation import install_command
from paragent.cli import main
from paragent.errors import UsageError
from paragent.store import JOURNAL_FILE, Journal, images_folder
from paragent.store.directory import file_name
from paragent.store.formats import export
from paragent.store.formats.atif import RESULT_FIELDS
from paragent.store.formats.importing import ImportReport, import_files
from paragent.testing.export_contract import PNG, sample_run

AGENT = {"name": "terminus", "version": "2", "model_name": "big"}


def imported(*paths: Path, to: Path) -> tuple[ImportReport, Journal]:
    report = import_files(paths, to)
    return report, Journal(to / JOURNAL_FILE, read_only=True)


def comparable(trajectory: dict[str, Any]) -> dict[str, Any]:
    """Return a trajectory without what formats do not keep: an empty content and the names of images."""
    messages = []
    for message in trajectory.get("messages", ()):
        kept = {name: value for name, value in message.items() if name not in {"images", "content"}}
        messages.append(kept | {"content": message["content"] or "", "images": len(message.get("images", ()))})
    steps = []
    for step in trajectory.get("steps", ()):
        kept = {name: value for name, value in step.items() if name not in {"finish_reason", "cached"}}
        steps.append(kept)
    return {**trajectory, "messages": messages, "steps": steps}


@pytest.mark.parametrize("form", ["atif", "inspect"])
def test_a_round_trip_keeps_everything(form: str, tmp_path: Path) -> None:
    with sample_run(tmp_path / "run") as before:
        export(before, form, tmp_path / "out")
        report, after = imported(tmp_path / "out", to=tmp_path / "imported")
        with after:
            assert (report.written, report.failed) == (10, 0)
            expected = {(one.task, one.attempt): one for one in before.results()}
            found = {(one.task, one.attempt): one for one in after.results()}
            assert found.keys() == expected.keys()
            for key, one in found.items():
                for name in RESULT_FIELDS:
                    assert getattr(one, name) == getattr(expected[key], name), (key, name)
                task, original = after.task(one.task), before.task(one.task)
                assert task == original
                trajectory = before.trajectory(expected[key].number) or {"messages": [], "steps": [], "tools": []}
                assert comparable(after.trajectory(one.number)) == comparable(trajectory), key
    [image] = images_folder(tmp_path / "imported", "image", 1).iterdir()
    assert image.read_bytes() == PNG


@pytest.mark.parametrize("form", ["atif", "inspect"])
def test_an_imported_run_can_be_exported_and_imported_again(form: str, tmp_path: Path) -> None:
    with sample_run(tmp_path / "run") as before:
        export(before, form, tmp_path / "first")
    _, first = imported(tmp_path / "first", to=tmp_path / "one")
    with first:
        export(first, form, tmp_path / "second")
        _, second = imported(tmp_path / "second", to=tmp_path / "two")
        with second:
            for one, other in zip(first.results(), second.results(), strict=True):
                assert (one.task, one.attempt, one.score) == (other.task, other.attempt, other.score)
                assert first.trajectory(one.number) == second.trajectory(other.number)


def test_the_commands_open_an_imported_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sample_run(tmp_path / "run") as journal:
        export(journal, "inspect", tmp_path / "log.eval")
    folder = str(tmp_path / "results")
    assert main(["import", str(tmp_path / "log.eval"), "--run-name", "mine", "--output-dir", folder]) == 0
    assert main(["show", f"{folder}/mine", "a", "--attempt", "2"]) == 0
    assert main(["compare", str(tmp_path / "run"), f"{folder}/mine"]) == 0
    assert main(["runs", "--output-dir", folder]) == 0
    out = capsys.readouterr().out
    assert "10 results imported" in out
    assert "0 better, 0 worse" in out
    config = json.loads((tmp_path / "results/mine/config.json").read_text())
    assert config["imported"]["format"] == "inspect"


def test_an_imported_run_cannot_be_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sample_run(tmp_path / "run") as journal:
        export(journal, "atif", tmp_path / "job")
    import_files([tmp_path / "job"], tmp_path / "results" / "mine")
    data = tmp_path / "data.jsonl"
    data.write_text('{"id": "a", "question": "1 + 1?", "answer": "2"}\n')
    given = ["--mode", "math", "--model", "demo", "--data", str(data), "--num-rollouts", "1"]
    assert main(["rollout", *given, "--output-dir", str(tmp_path / "results"), "--run-name", "mine"]) == 2
    assert "was imported from atif files" in capsys.readouterr().err


def trial(folder: Path, name: str, steps: list[dict[str, Any]], result: dict[str, Any] | None = None) -> Path:
    """Write a trial of Harbor and return its folder."""
    agent = folder / name / "agent"
    agent.mkdir(parents=True)
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    document = {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": AGENT, "steps": numbered}
    (agent / "trajectory.json").write_text(json.dumps(document))
    if result is not None:
        (folder / name / "result.json").write_text(json.dumps(result))
    return folder / name


STEPS: list[dict[str, Any]] = [
    {"source": "user", "message": "Fix the bug.", "timestamp": "2026-01-01T00:00:00Z"},
    {
        "source": "agent",
        "message": "",
        "timestamp": "2026-01-01T00:00:05Z",
        "reasoning_content": "I look.",
        "tool_calls": [{"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "ls"}}],
        "observation": {"results": [{"source_call_id": "1", "content": "bug.py"}]},
        "metrics": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_token_ids": [1], "completion_token_ids": [2]},
    },
    {"source": "agent", "message": "Fixed.", "timestamp": "2026-01-01T00:00:09Z"},
]


def test_a_job_of_harbor_is_imported(tmp_path: Path) -> None:
    job = tmp_path / "job"
    times = {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:10Z"}
    good = {"task_name": "fix", "verifier_result": {"rewards": {"reward": 1.0}}, **times}
    failure = {"exception_type": "AgentTimeoutError", "exception_message": "too slow"}
    trial(job, "fix__abc", STEPS, good)
    trial(job, "fix__def", STEPS, {"task_name": "fix", "exception_info": failure, **times})
    report, journal = imported(job, to=tmp_path / "run")
    with journal:
        first, second = journal.results()
        assert report.written == 2
        assert [(one.task, one.attempt) for one in (first, second)] == [("fix", 1), ("fix", 2)]
        assert (first.status, first.score, first.answer, first.seconds) == ("completed", 1.0, "Fixed.", 10.0)
        assert (second.status, second.error) == ("timed out", "AgentTimeoutError: too slow")
        trajectory = journal.trajectory(first.number)
        assert [message["role"] for message in trajectory["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert [step["at"] for step in trajectory["steps"] if step["kind"] == "model"] == [5.0, 9.0]
        assert trajectory["tokens"][0]["mask"] == [0, 1]
        task = journal.task("fix")
        assert task is not None
        assert task.question == "Fix the bug."


def log_of_inspect(sample: dict[str, Any]) -> dict[str, Any]:
    spec = {"task": "gsm8k", "model": "openai/big", "dataset": {}, "config": {}, "created": "2026-01-01T00:00:00Z"}
    return {"version": 2, "status": "success", "eval": spec, "samples": [sample]}


SAMPLE: dict[str, Any] = {
    "id": 7,
    "epoch": 2,
    "input": "1 + 1?",
    "target": "2",
    "messages": [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "2"}]},
    ],
    "scores": {"match": {"value": "C"}},
    "model_usage": {"openai/big": {"input_tokens": 3, "output_tokens": 1, "input_tokens_cache_read": 4}},
    "events": [
        {
            "event": "model",
            "model": "openai/big",
            "timestamp": "2026-01-01T00:00:01Z",
            "completed": "2026-01-01T00:00:03Z",
            "input": [{"role": "user", "content": "1 + 1?"}],
            "output": {"choices": [{"message": {"role": "assistant", "content": "2"}, "stop_reason": "stop"}]},
        },
        {"event": "state", "changes": []},
    ],
    "started_at": "2026-01-01T00:00:00Z",
    "completed_at": "2026-01-01T00:00:04Z",
    "total_time": 4.0,
}


def test_a_log_of_inspect_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log_of_inspect(SAMPLE)))
    _, journal = imported(path, to=tmp_path / "run")
    with journal:
        [result] = journal.results()
        assert (result.task, result.attempt, result.score, result.scores) == ("7", 2, 1.0, {"match": 1.0})
        assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (7, 1, 4)
        assert result.seconds == 4.0
        trajectory = journal.trajectory(result.number)
        assert trajectory["messages"][1]["reasoning_content"] == "Hm."
        [step] = trajectory["steps"]
        assert (step["at"], step["seconds"], step["messages"], step["turn"]) == (1.0, 2.0, 1, 1)


# --- attacks ----------------------------------------------------------------------------------------------------------


def test_a_path_in_a_trajectory_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(PNG)
    paths = ["../../../secret.png", str(secret), "link.png", "images/../../../../secret.png", "a\0b"]
    parts = [{"type": "image", "source": {"media_type": "image/png", "path": path}} for path in paths]
    folder = trial(tmp_path / "job", "a", [{"source": "user", "message": parts}])
    (folder / "agent" / "link.png").symlink_to(secret)
    (folder / "agent" / "own.png").write_bytes(PNG)
    _, journal = imported(folder, to=tmp_path / "run")
    with journal:
        [result] = journal.results()
        [message] = journal.trajectory(result.number)["messages"]
        assert "images" not in message
        assert message["content"].count("not imported") == len(paths)
    assert not images_folder(tmp_path / "run", "a", 1).exists()


def test_a_link_to_a_trajectory_outside_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = trial(tmp_path / "private", "secret", STEPS)
    inside = tmp_path / "job" / "x" / "agent"
    inside.mkdir(parents=True)
    (inside / "trajectory.json").symlink_to(outside / "agent" / "trajectory.json")
    with pytest.raises(UsageError, match="nothing to import"):
        import_files([tmp_path / "job"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_names_of_tasks_cannot_lead_out_of_the_run(tmp_path: Path) -> None:
    sample = SAMPLE | {"id": "../../../../escape"}
    url = "data:image/png;base64,iVBORw0KGgoAAAA="
    sample["messages"] = [{"role": "user", "content": [{"type": "image", "image": url}]}]
    (tmp_path / "log.json").write_text(json.dumps(log_of_inspect(sample)))
    import_files([tmp_path / "log.json"], tmp_path / "results" / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.json", "results"]
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["run"]
    assert (tmp_path / "results/run/images" / file_name("../../../../escape")).is_dir()


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


def zstandard_archive(path: Path, members: dict[str, bytes]) -> Path:
    """Write an archive with the compression of inspect, which `zipfile` does not support before Python 3.14."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as made:
        for name, content in members.items():
            made.writestr(name, zstandard.compress(content))
        offsets = [member.header_offset for member in made.infolist()]
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    for offset, content in zip(offsets, members.values(), strict=True):
        for method in (offset + 8, entry + 10):  # in the header of the file, and in the directory
            struct.pack_into("<H", data, method, 93)
            struct.pack_into("<I", data, method + 6, zlib.crc32(content))
            struct.pack_into("<I", data, method + 14, len(content))
        entry = data.find(b"PK\x01\x02", entry + 1)
    path.write_bytes(data)
    return path


def native_log(path: Path) -> Path:
    """Write a log as inspect does."""
    header, sample = {"eval": {"task": "sums", "model": "big"}}, json.dumps(SAMPLE).encode()
    members = {"header.json": json.dumps(header).encode(), "samples/a_epoch_1.json": sample}
    return zstandard_archive(path, members)


def test_an_archive_with_the_compression_of_inspect_is_imported(tmp_path: Path) -> None:
    _, journal = imported(native_log(tmp_path / "native.eval"), to=tmp_path / "run")
    with journal:
        [result] = journal.results()
        assert (result.task, result.attempt) == (str(SAMPLE["id"]), SAMPLE["epoch"])
        assert journal.trajectory(result.number)["messages"]


def test_without_its_package_that_compression_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    command = re.escape(install_command(["inspect"]))
    with pytest.raises(UsageError, match=rf"{command}\. .*inspect log convert --to json"):
        import_files([native_log(tmp_path / "native.eval")], tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "problem"), [(0, "cannot be decompressed"), (-1, "cannot be decompressed|checksum")]
)
def test_a_damaged_file_of_such_an_archive_is_reported(change: int, problem: str, tmp_path: Path) -> None:
    path = native_log(tmp_path / "native.eval")
    packed = zstandard.compress(json.dumps(SAMPLE).encode())
    damaged = bytearray(packed)
    damaged[change] ^= 0xFF
    path.write_bytes(path.read_bytes().replace(packed, bytes(damaged)))
    with pytest.raises(UsageError, match=problem):
        import_files([path], tmp_path / "run")


def test_a_member_of_such_an_archive_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.store.formats.inspect_reader.LARGEST_DOCUMENT", 1000)
    header = json.dumps({"eval": {}}).encode()
    path = zstandard_archive(tmp_path / "big.eval", {"header.json": header, "samples/a.json": b"[" * 100_000})
    with pytest.raises(UsageError, match="more than 1,000 bytes"):
        import_files([path], tmp_path / "run")


def test_an_archive_that_expands_too_much_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.store.formats.inspect_reader._SMALL", 1 << 20)
    bomb = archive(tmp_path / "bomb.eval", {"header.json": b"{}", "samples/a.json": b" " * (30 << 20)})
    with pytest.raises(UsageError, match="would expand"):
        import_files([bomb], tmp_path / "run")


def test_a_member_that_is_larger_than_it_says_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.store.formats.inspect_reader.LARGEST_DOCUMENT", 1000)
    header = json.dumps({"eval": {}}).encode()
    path = archive(tmp_path / "big.eval", {"header.json": header, "samples/a.json": b"[" * 100_000})
    with pytest.raises(UsageError, match="more than 1,000 bytes"):
        import_files([path], tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"\x89PNG", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": 1}', "neither an ATIF trajectory"),
        (b'{"schema_version": "ATIF-v1.8", "steps": 3}', "no steps"),
        (b'{"eval": {}, "samples": [{"id": null}, 3]}', "has no id"),
        (b"PK\x03\x04 broken", "cannot be read"),
    ],
)
def test_malformed_files_are_clear_errors(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        import_files([tmp_path / "bad.json"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_archive_without_a_header_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a log of inspect"):
        import_files([archive(tmp_path / "a.eval", {"../../x": b"{}"})], tmp_path / "run")


ODD: list[Any] = [None, True, -1, 1e999, 2**70, "x", [], {}, [[]], {"a": [1, {"b": None}]}, "\ud800", ["a"] * 3]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_values_of_any_type_are_imported_or_named(odd: Any, tmp_path: Path) -> None:
    sample = dict.fromkeys(SAMPLE, odd) | {"id": "a"}
    nested = {**SAMPLE, "id": "b", "messages": [odd, {"role": odd, "content": odd, "tool_calls": [odd, {"id": odd}]}]}
    nested["events"] = [odd, {"event": "model", "input": [odd], "input_refs": [odd, [0, odd]], "output": odd}]
    nested["limit"] = {"type": odd}
    plain = {**nested, "id": "c", "error": {"message": odd}, "scores": {"s": {"value": odd}}}
    nested["metadata"] = {"paragent": dict.fromkeys([*RESULT_FIELDS, "tokens", "tools"], odd)}
    document = log_of_inspect(SAMPLE) | {"samples": [sample, nested, plain, SAMPLE]}
    (tmp_path / "log.json").write_text(json.dumps(document))
    step = dict.fromkeys(["source", "message", "tool_calls", "observation", "metrics", "extra", "timestamp"], odd)
    agent_step = step | {
        "source": "agent",
        "message": [odd, {"type": odd, "source": odd}, {"type": "image", "source": {"path": odd}}],
        "tool_calls": [odd, {"arguments": odd}],
        "observation": {"results": [odd, {}]},
    }
    trial(
        tmp_path / "job",
        "t",
        [step, agent_step],
        dict.fromkeys(["task_name", "verifier_result", "exception_info"], odd),
    )
    report, journal = imported(tmp_path / "log.json", tmp_path / "job", to=tmp_path / "run")
    with journal:
        assert report.written + report.failed == 5
        assert {"7"} <= {one.task for one in journal.results()}
        for one in journal.results():
            assert isinstance(journal.trajectory(one.number)["messages"], list)


def test_good_files_are_imported_and_bad_ones_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial(tmp_path / "job", "good", STEPS)
    bad = trial(tmp_path / "job", "bad", STEPS)
    (bad / "agent" / "trajectory.json").write_text("{")
    assert main(["import", str(tmp_path / "job"), "--output-dir", str(tmp_path / "results")]) == 1
    out = capsys.readouterr().out
    assert "1 result imported" in out
    assert "bad/agent/trajectory.json: not JSON" in out


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    trial(tmp_path / "job", "good", STEPS)
    import_files([tmp_path / "job"], tmp_path / "run")
    with pytest.raises(UsageError, match="choose another --run-name"):
        import_files([tmp_path / "job"], tmp_path / "run")
    with pytest.raises(UsageError, match="run directory of paragent"):
        import_files([tmp_path / "run"], tmp_path / "other")


@pytest.mark.parametrize("folder", [False, True])
def test_a_named_pipe_is_not_opened(folder: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job").mkdir()
    pipe = tmp_path / "job" / "trajectory.json"
    os.mkfifo(pipe)
    given = pipe.parent if folder else pipe
    assert main(["import", str(given), "--run-name", "mine", "--output-dir", str(tmp_path / "results")]) != 0
    shown = capsys.readouterr()
    assert "is not a regular file" in shown.out + shown.err
