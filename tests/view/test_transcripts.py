"""The page of one execution: transcript, raw calls, long texts, images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from paragent.cli import main
from paragent.store import JOURNAL_FILE, add_note
from paragent.store.directory import images_folder
from tests.view.recorded import PNG, result, serving, trajectory, write_run

HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m javascript:alert(1) \u202e"
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "computer", "arguments": '{"action_type": "CLICK", "mark": 1}'},
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Work."},
    {"role": "user", "content": "Click.", "images": ["step_0_a.png"]},
    {"role": "assistant", "content": None, "reasoning_content": "I should click.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": HOSTILE, "kept": ["step_1_b.png"]},
    {"role": "assistant", "content": [{"type": "text", "text": "Done"}]},
]
STEPS: list[dict[str, Any]] = [
    {"kind": "machine", "machine": "m0", "address": "127.0.0.1:1"},
    {
        "kind": "model", "turn": 1, "at": 0.5, "seconds": 1.0, "model": "gpt", "request_id": "req_1", "messages": 2,
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 3}, "finish_reason": "tool_calls",
        "response": {"id": "req_1", "choices": []}, "retries": 2, "waited": 0.25,
    },
    {
        "kind": "tool", "turn": 1, "at": 1.5, "seconds": 0.5, "name": "computer", "call": "c1", "error": True,
        "extras": {"action": {"action_type": "CLICK", "parameters": {"x": 3, "y": 4}}},
    },
    {"kind": "model", "turn": 2, "at": 2.0, "seconds": 1.0},
    {"kind": "score", "metric": "judge", "note": "wrong"},
]  # fmt: skip
LONG = "x" * 10_000_000


def _repeating() -> Any:
    """An execution whose endpoint uses the same id for the calls of every turn."""
    call = {"id": "0", "function": {"name": "a", "arguments": "{}"}}
    turn: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "0", "content": "x"},
    ]
    steps = [
        {"kind": "tool", "call": "0", "name": "a", "at": 1.0, "seconds": 0.1},
        {"kind": "tool", "call": "0", "name": "b", "at": 2.0, "seconds": 0.1, "error": True},
    ]
    return result("d", attempt=2, trajectory=trajectory(*turn, *turn, steps=steps))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("runs")
    first = result(
        "a",
        status="infrastructure",
        final=False,
        kind="endpoint",
        error="HTTP 503\nTraceback ...",
        trajectory=trajectory(*MESSAGES, steps=STEPS),
        files={"step_0_a.png": PNG, "step_1_b.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "video.mp4": b"0"},
    )
    second = result("a", score=1.0, answer="Done", trajectory=trajectory({"role": "user", "content": LONG}))
    broken = result("b", trajectory=b"not compressed")
    odd = result("c", trajectory=trajectory({"role": 3, "content": {"a": 1}, "images": 7, "tool_calls": "x"}))
    click = {"id": "c", "function": {"name": "click", "arguments": '{"number": 3}'}}
    text_only = result(
        "c", attempt=2, trajectory=trajectory({"role": "assistant", "content": "", "tool_calls": [click]})
    )
    results = [first, second, broken, odd, result("a", attempt=2), text_only, _repeating()]
    path = write_run(folder, "one", results, attempts=2)
    add_note(path / JOURNAL_FILE, 1, 3, "look here")
    images = images_folder(path, "a", 1)
    (images / "page.png").write_bytes(b"<!doctype html><script>alert(1)</script>")
    (images / "linked.png").symlink_to("/etc/passwd")
    (images / "film.mp4").write_bytes(b"\0\0\0\x20ftypisom")
    for name, content in {"j.png": b"\xff\xd8\xff\xe0", "g.gif": b"GIF89a", "w.webp": b"RIFF0000WEBPVP8 "}.items():
        (images / name).write_bytes(content)
    with serving(folder) as (_, client):
        yield client


def detail(client: httpx.Client, number: int) -> Any:
    answer = client.get(f"/api/runs/one/executions/{number}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_messages_and_steps_are_merged(client: httpx.Client) -> None:
    steps = detail(client, 1)["steps"]
    assert [step["kind"] for step in steps] == ["machine", "system", "user", "model", "tool", "model", "score", "error"]
    assert [step["index"] for step in steps] == list(range(8))
    reply, tool = steps[3], steps[4]
    assert (reply["at"], reply["seconds"], reply["turn"], reply["name"]) == (0.5, 1.0, 1, "gpt")
    assert (reply["request_id"], reply["retries"], reply["waited"], reply["finish_reason"]) == (
        "req_1",
        2,
        0.25,
        "tool_calls",
    )
    assert (reply["prompt_tokens"], reply["completion_tokens"], reply["cached_tokens"]) == (10, 5, 3)
    assert reply["reasoning"] == "I should click."
    assert reply["calls"] == [{"id": "c1", "name": "computer", "arguments": '{"action_type": "CLICK", "mark": 1}'}]
    assert (tool["call"], tool["name"], tool["error"], tool["text"]) == ("c1", "computer", True, HOSTILE)
    assert steps[5]["text"] == "Done"
    assert steps[6]["text"] == "wrong"
    assert steps[7]["text"].startswith("HTTP 503")


def test_results_of_calls_with_the_same_id_keep_their_own_times(client: httpx.Client) -> None:
    steps = [step for step in detail(client, 7)["steps"] if step["kind"] == "tool"]
    assert [(step["at"], step["name"], step["error"]) for step in steps] == [(1.0, "a", False), (2.0, "b", True)]


def test_actions_are_drawn_on_the_image_that_the_model_saw(client: httpx.Client) -> None:
    reply = detail(client, 1)["steps"][3]
    assert reply["seen"] == "step_0_a.png"
    assert [(one["kind"], one["x"], one["y"]) for one in reply["pointers"]] == [("click", 3, 4)]


def test_a_call_without_an_image_has_nothing_to_draw(client: httpx.Client) -> None:
    """`click` of a browser that is shown as text is a tool like any other."""
    assert [step["pointers"] for step in detail(client, 6)["steps"]] == [[]]


def test_failed_calls_and_calls_of_judges_are_steps(tmp_path: Path) -> None:
    judged = {"choices": [{"message": {"role": "assistant", "content": "It is wrong."}}]}
    steps: list[dict[str, Any]] = [
        {"kind": "model", "turn": 1, "model": "gpt", "messages": 1, "response": {}},
        {"kind": "model", "turn": 2, "model": "gpt", "messages": 2, "error": "EndpointDown: HTTP 503"},
        {
            "kind": "judge",
            "turn": 2,
            "model": "judge",
            "messages": 0,
            "request": [{"role": "user"}],
            "response": judged,
        },
    ]
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "One"}]
    write_run(tmp_path / "runs", "one", [result("a", trajectory=trajectory(*messages, steps=steps))])
    with serving(tmp_path / "runs") as (_, client):
        found = [(step["kind"], step["text"], step["error"]) for step in detail(client, 1)["steps"]]
        assert found == [
            ("user", "Hello", False),
            ("model", "One", False),
            ("model", "EndpointDown: HTTP 503", True),
            ("judge", "It is wrong.", False),
        ]
        failed = client.get("/api/runs/one/executions/1/raw/2").json()
        assert [message["content"] for message in failed["request"]["messages"]] == ["Hello", "One"]
        assert client.get("/api/runs/one/executions/1/raw/3").json()["request"]["messages"] == [{"role": "user"}]


def test_a_program_is_a_step_with_its_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program: dict[str, Any] = {"kind": "program", "turn": 1, "at": 0.5, "seconds": 1.25, "place": "sandbox"}
    program |= {"command": ["python", "my agent.py"], "exit_code": 3, "stdout": "out\n", "stderr": HOSTILE}
    odd = {"kind": "program", "command": "no list", "seconds": "long", "exit_code": None, "stdout": ["x"]}
    steps: list[dict[str, Any]] = [program, odd]
    written = result("a", status="failed", trajectory=trajectory({"role": "user", "content": "?"}, steps=steps))
    write_run(tmp_path / "runs", "one", [written])
    with serving(tmp_path / "runs") as (_, client):
        shown = detail(client, 1)["steps"]
    first, second = [step for step in shown if step["kind"] == "program"]
    lines = first["text"].splitlines()
    assert lines[:5] == ["$ python 'my agent.py'", "exit code 3 after 1.2 s in the sandbox", "", "stdout:", "out"]
    assert (first["error"], first["at"], first["seconds"]) == (True, 0.5, 1.25)
    assert second["text"].startswith("$ \nexit code unknown\n")
    assert main(["show", str(tmp_path / "runs/one"), "a"]) == 0
    printed = capsys.readouterr().out
    assert "exit code 3 after 1.2 s in the sandbox" in printed
    assert "\x1b[31m" not in printed


def test_the_execution_has_its_facts_and_links(client: httpx.Client) -> None:
    found = detail(client, 1)
    assert (found["status"], found["party"], found["kind"], found["final"]) == (
        "infrastructure",
        "endpoint",
        "endpoint",
        False,
    )
    assert found["activity"] == [["starting", 0.5], ["generating", 1.0], ["acting", 0.5]]
    assert found["question"] == "What is a?"
    assert found["reference"] == "42"
    assert [ref["number"] for ref in found["executions"]] == [1, 2]
    assert [ref["number"] for ref in found["attempts"]] == [2, 5]
    assert [(note["step"], note["text"]) for note in found["notes"]] == [(3, "look here")]
    assert [name for name in found["files"] if name.startswith("video")]


def test_the_request_and_the_response_of_a_call_are_shown(client: httpx.Client) -> None:
    raw = client.get("/api/runs/one/executions/1/raw/3").json()
    assert raw["request"]["model"] == "gpt"
    assert [message["role"] for message in raw["request"]["messages"]] == ["system", "user"]
    assert raw["response"] == {"id": "req_1", "choices": []}
    later = client.get("/api/runs/one/executions/1/raw/5").json()
    assert len(later["request"]["messages"]) == 4
    assert later["response"] is None
    assert client.get("/api/runs/one/executions/1/raw/4").status_code == 404


def test_a_long_text_is_cut_and_can_be_read_as_a_whole(client: httpx.Client) -> None:
    [step] = detail(client, 2)["steps"]
    assert len(step["text"]) == 100_000
    assert step["length"] == len(LONG)
    whole = client.get("/api/runs/one/executions/2/text/0")
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.text == LONG
    assert client.get("/api/runs/one/executions/2/text/1").status_code == 404


def test_damaged_and_odd_trajectories_are_shown(client: httpx.Client) -> None:
    [step] = detail(client, 3)["steps"]
    assert step["kind"] == "error"
    assert "damaged" in step["text"]
    [step] = detail(client, 4)["steps"]
    assert (step["kind"], step["text"], step["images"]) == ("user", '{"a": 1}', [])


def test_images_are_served_with_the_type_of_their_first_bytes(client: httpx.Client) -> None:
    types = {"step_0_a.png": "image/png", "j.png": "image/jpeg", "g.gif": "image/gif", "w.webp": "image/webp"}
    for name, kind in types.items():
        answer = client.get(f"/api/runs/one/images/1/{name}")
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_recording_is_downloaded_and_not_shown(client: httpx.Client) -> None:
    answer = client.get("/api/runs/one/images/1/film.mp4")
    assert (answer.headers["content-type"], answer.headers["content-disposition"]) == ("video/mp4", "attachment")


@pytest.mark.parametrize("name", ["page.png", "step_1_b.png", "video.mp4"])
def test_what_is_not_an_image_is_not_served(client: httpx.Client, name: str) -> None:
    assert client.get(f"/api/runs/one/images/1/{name}").status_code == 415


@pytest.mark.parametrize(
    "path",
    [
        "executions/99",
        "executions/0",
        "executions/99999999999999999999999",
        "executions/x",
        "images/1/none.png",
        "images/1/linked.png",
        "images/1/..%2f..%2f..%2fconfig.json",
        "images/1/%2e%2e",
        "images/1/..",
        "images/99/step_0_a.png",
        "images/..%2f/step_0_a.png",
    ],
)
def test_unknown_executions_and_files_are_not_found(client: httpx.Client, path: str) -> None:
    assert client.get(f"/api/runs/one/{path}").status_code in {404, 307}
    assert b"root:" not in client.get(f"/api/runs/one/{path}").content


def test_tasks_with_odd_names_are_shown(tmp_path: Path) -> None:
    names = ["../up", "a/b", ".hidden", "x" * 300, "<b>", "ü"]
    folder = tmp_path / "runs"
    results = [
        result(name, trajectory=trajectory(*MESSAGES, steps=STEPS), files={"step_0_a.png": PNG}) for name in names
    ]
    write_run(folder, "odd names", results)
    with serving(folder) as (_, other):
        for number in range(1, len(names) + 1):
            assert other.get(f"/api/runs/odd%20names/images/{number}/step_0_a.png").content == PNG
            assert other.get(f"/api/runs/odd%20names/executions/{number}").json()["task"] == names[number - 1]
