"""Images in rollouts: requests contain the last ones, the run stores all as files, the journal has their names."""

from __future__ import annotations

import base64
import json
import sqlite3
from pathlib import Path
from typing import Annotated, Any

import pytest

from paragent import Environment, RolloutConfig, ToolResult, run_parallel_rollout, tool
from paragent.cli import main
from paragent.messages import with_images
from paragent.store import Journal, images_folder
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer, Script

HERE = "tests.rollout.test_images"


def png(name: str) -> bytes:
    """Bytes that stand for a PNG file; no test decodes them."""
    return b"\x89PNG\r\n\x1a\n" + name.encode() * 100


class Painter(Environment):
    """Shows an image at the start and after every stroke; a tool ends the attempt."""

    name = "painter"
    metric = "strokes"
    one_at_a_time = True
    images_shown = 2

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        self.strokes = 0
        self.first_images = (png("blank"),)
        return await super().open(task, machine)

    @tool
    async def stroke(self, colour: Annotated[str, "which"]) -> ToolResult:
        """Draw a line."""
        self.strokes += 1
        return ToolResult("drawn", images=(png(colour),), kept=(png("palette"),))

    @tool
    async def sign(self) -> ToolResult:
        """Finish the image."""
        return ToolResult("signed", ends="signed")

    def calls_in(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        return [("stroke", {"colour": text.removeprefix("paint ")})] if text.startswith("paint ") else []

    async def score(self, task: BenchmarkTask, answer: str, transcript: Any = ()) -> dict[str, float]:
        return {"strokes": self.strokes / 10}

    async def close(self) -> None:
        self.files["recording.mp4"] = b"recording"
        await super().close()


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": name, "arguments": arguments}


SCRIPT = [
    "paint red",
    {"tools": [call("stroke", colour="blue"), call("stroke", colour="green")]},
    {"tools": [call("sign")], "content": "There it is."},
    "never said",
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[dict[str, Any]]]:
    """A run of one rollout, and the requests to its model."""
    data = tmp_path / "tasks.jsonl"
    data.write_text(json.dumps({"id": "a/../b", "question": "Paint."}) + "\n")
    with OpenAIServer(Script(default=SCRIPT), keep_requests=True) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        config = RolloutConfig(
            env=f"{HERE}:Painter", data=data, model="m", engine="inline", output_dir=tmp_path, run_name="run"
        )
        summary = run_parallel_rollout(config)
        assert summary.mean == pytest.approx(0.3)
        return tmp_path / "run", list(server.seen.bodies)


def shown(request: dict[str, Any]) -> list[bytes]:
    parts = [
        part for message in request["messages"] if isinstance(message["content"], list) for part in message["content"]
    ]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in urls]


def test_requests_contain_the_last_images(run: tuple[Path, list[dict[str, Any]]]) -> None:
    _, requests = run
    assert [shown(request) for request in requests] == [
        [png("blank")],
        [png("blank"), png("red")],
        [png("blue"), png("green")],
    ]
    for request in requests:
        for message in request["messages"]:
            assert not {"images", "kept"} & set(message)
            assert message["role"] != "tool" or isinstance(message["content"], str)
    roles = [message["role"] for message in requests[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "tool", "user"]


def test_images_are_files_and_the_journal_has_their_names(
    run: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = run
    files = sorted(file for file in (path / "images").rglob("*") if file.is_file())
    assert {file.parent.relative_to(path / "images").as_posix() for file in files} == {
        images_folder(path, "a/../b", 1).relative_to(path / "images").as_posix()
    }
    contents = {
        file.name.split("_")[0] + file.name.split("_")[1]: file.read_bytes() for file in files if file.suffix == ".png"
    }
    assert contents["step0"] == png("blank")
    assert sorted(file.read_bytes() for file in files) == sorted(
        [png("blank"), png("red"), png("blue"), png("green"), png("palette"), b"recording"]
    )
    with Journal(path / "journal.sqlite", read_only=True) as journal:
        [result] = list(journal.results())
        assert (result.ending, result.answer) == ("signed", "There it is.")
        text = json.dumps(journal.trajectory(result.number))
    assert "base64" not in text
    named = {name for message in json.loads(text)["messages"] for name in message.get("images", [])}
    assert len(named) == 4
    assert named <= {file.name for file in files}
    database = sqlite3.connect(path / "journal.sqlite")
    assert "files" not in [row[1] for row in database.execute("PRAGMA table_info(results)")]
    database.close()
    assert main(["show", str(path), "a/../b"]) == 0
    reported = capsys.readouterr().out
    assert all(name in reported.replace("\n", "") for name in named)


def test_exports_contain_images(run: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    path, _ = run
    assert main(["export", str(path), "--format", "openai-chat", "--output", str(tmp_path / "chat.jsonl")]) == 0
    [line] = (tmp_path / "chat.jsonl").read_text().splitlines()
    assert shown(json.loads(line)) == [png("blank"), png("red"), png("blue"), png("green")]
    assert main(["export", str(path), "--format", "osworld", "--output", str(tmp_path / "layout")]) == 0
    [folder] = (tmp_path / "layout/default").iterdir()
    assert folder.name.startswith("a_.._b-")
    steps = [json.loads(line) for line in (folder / "traj.jsonl").read_text().splitlines()]
    assert [step["step_num"] for step in steps] == [1, 2, 3, 4]
    assert [(folder / step["screenshot_file"]).read_bytes() for step in steps[:3]] == [
        png("red"),
        png("blue"),
        png("green"),
    ]
    assert steps[0]["action_timestamp"] < steps[1]["action_timestamp"]


def test_conversations_without_images_are_unchanged() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b", "tool_call_id": "1"}]
    assert with_images(messages, lambda name: b"") == messages
