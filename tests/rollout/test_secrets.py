"""The user's key stays out of run directories, of the terminal and of agents when the endpoint repeats it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paragent.cli import main
from paragent.store import Journal
from paragent.store.records import unpack_trajectory
from tests.models.hostile_endpoints import ANSWERS, KEY, repeating_endpoint
from tests.rollout.program_runs import Project

PARTS = {KEY[start : start + 12] for start in range(len(KEY) - 11)}
PROGRAM = """
import urllib.error
try:
    print(ask([{"role": "user", "content": "?"}], stream=STREAM)["content"])
except urllib.error.HTTPError as error:
    print("the endpoint says", error.code, dict(error.headers), error.read().decode())
"""


def recorded(run: Path) -> str:
    """Return all text of a run directory, with the unpacked trajectories."""
    files = [path.read_bytes().decode(errors="replace") for path in run.rglob("*") if path.is_file()]
    with Journal(run / "journal.sqlite", read_only=True) as journal:
        packed = [body for [body] in journal.rows("SELECT body FROM trajectories", [])]
    assert packed
    return "\n".join([*files, *(str(unpack_trajectory(body)) for body in packed)])


def run(agent: list[str], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    Path("tasks.jsonl").write_text(json.dumps({"id": "a", "question": "?", "answer": "42"}))
    command = ["rollout", "--mode", "math", "--data", "tasks.jsonl", "--model", "m", "--engine", "inline"]
    main([*command, "--max-retries", "0", "--run-name", "run", *agent])


@pytest.mark.parametrize("name", ["401", "400", pytest.param("500", marks=pytest.mark.slow)])
def test_a_run_records_and_prints_no_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with repeating_endpoint(ANSWERS[name]) as url:
        run([], url, monkeypatch)
        main(["show", "run", "a"])
    shown = capsys.readouterr()
    text = recorded(tmp_path / "results" / "run") + shown.out + shown.err
    assert f"HTTP {name}" in text
    assert not [part for part in PARTS if part in text], text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["401", "400", "500", "an error in a stream"])
def test_a_program_in_the_sandbox_gets_no_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path / "project", monkeypatch)
    streamed = "stream" in name
    agent = project.python(PROGRAM.replace("STREAM", str(streamed)))
    with repeating_endpoint(ANSWERS[name]) as url:
        run(["--agent", agent, *(["--stream"] if streamed else [])], url, monkeypatch)
    shown = capsys.readouterr()
    text = recorded(project.folder / "results" / "run") + shown.out + shown.err
    assert "the endpoint says" in text
    assert not [part for part in PARTS if part in text], text
