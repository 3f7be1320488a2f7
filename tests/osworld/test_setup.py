"""Set-up steps on a real desktop, and errors of steps that fail."""

from __future__ import annotations

import asyncio
import functools
import http.server
import json
import os
import re
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent.errors import EnvironmentFailed, MachineFailed
from paragent.machines import Machine
from paragent.osworld import setup as steps_module
from paragent.osworld.access import Access
from paragent.osworld.context import AttemptContext, MachineRefused
from paragent.osworld.controller import Controller
from paragent.osworld.setup import STEPS, missing_for_steps, set_up


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


def shell(command: str, **more: Any) -> dict[str, Any]:
    return step("execute", command=command, shell=True, **more)


@pytest.fixture
def attempt(shared_desktop: Machine, tmp_path: Path) -> AttemptContext:
    access = Access(tmp_path, allow_private=True)
    return AttemptContext(Controller(shared_desktop), tmp_path, "secret", (1280, 800), run_steps=set_up, access=access)


def do(attempt: AttemptContext, *steps: dict[str, Any]) -> None:
    asyncio.run(asyncio.wait_for(attempt.set_up(steps), 100))


def output(attempt: AttemptContext, command: str) -> str:
    return asyncio.run(attempt.controller.execute(command, shell=True)).output


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "note.txt").write_text("from the network")
    (folder / "index.html").write_text("<title>One</title>")
    (folder / "two.html").write_text("<title>Two</title>")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_placeholders_are_replaced_and_output_is_kept(attempt: AttemptContext) -> None:
    values = "{CLIENT_PASSWORD} {SCREEN_WIDTH} {SCREEN_HEIGHT} {SCREEN_WIDTH_HALF} {SCREEN_HEIGHT_HALF}"
    do(
        attempt,
        step("execute", command=["echo", values], stdout="out.txt"),
        step("command", command=f"echo {values} >&2", shell="true", stderr="err.txt"),
        step("sleep", seconds=0.01),
    )
    for name in ("out.txt", "err.txt"):
        assert (attempt.folder / name).read_text() == "secret 1280 800 640 400\n"


def test_a_command_is_repeated_until_its_condition_holds(attempt: AttemptContext) -> None:
    count = "echo x >> ~/count; wc -l < ~/count"
    do(attempt, shell(count, until={"stdout": "3"}), shell("test $(wc -l < ~/count) = 3", until={"returncode": 0}))
    assert output(attempt, "wc -l < ~/count").strip() == "3"


def test_until_has_a_time_limit(attempt: AttemptContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "_UNTIL_SECONDS", 0.2)
    with pytest.raises(EnvironmentFailed, match="did not give"):
        do(attempt, shell("false", until={"returncode": 0}))


def test_files_are_downloaded_once_and_uploaded_from_this_host(
    attempt: AttemptContext, site: str, tmp_path: Path
) -> None:
    file = {"url": f"{site}/note.txt", "path": "~/a b/note.txt"}
    do(attempt, step("download", files=[file]))
    (tmp_path / "site/note.txt").unlink()
    do(attempt, step("download", files=[file, {**file, "path": "~/second.txt"}]))
    (tmp_path / "mine.bin").write_bytes(b"\0\r\n--\xff")
    do(attempt, step("upload_file", files=[{"local_path": str(tmp_path / "mine.bin"), "path": "~/mine.bin"}]))
    assert output(attempt, 'cat ~/"a b"/note.txt ~/second.txt') == "from the network" * 2
    assert asyncio.run(attempt.controller.file("~/mine.bin")) == b"\0\r\n--\xff"


def test_windows_are_opened_activated_and_closed(attempt: AttemptContext) -> None:
    do(
        attempt,
        shell("echo hello > ~/greeting.txt"),
        step("open", path="~/greeting.txt"),
        step("activate_window", window_name="LXTerminal"),
        step("activate_window", window_name="no such window"),
    )
    assert "greeting.txt" in asyncio.run(attempt.controller.accessibility_tree())
    do(attempt, step("close_window", window_name="greeting.txt"), step("close_window", window_name="no such window"))
    do(
        attempt,
        step("execute_with_verification", command=["true"], verification={"window_exists": "LXTerminal"}),
        step("launch", command="touch launched here"),
        shell("ls ~/launched ~/here", until={"returncode": 0}),
    )
    with pytest.raises(MachineRefused, match="did not result in"):
        do(
            attempt,
            step(
                "execute_with_verification",
                command=["true"],
                verification={"command_success": "false"},
                max_wait_time=0.2,
                check_interval=0.1,
            ),
        )


def test_refused_steps_are_logged_and_unanswered_steps_fail(
    attempt: AttemptContext, caplog: pytest.LogCaptureFixture
) -> None:
    steps: dict[str, dict[str, Any]] = {
        "launch": {"command": ["no-such-program-at-all"]},
        "change_wallpaper": {"path": "/no/such.png"},
        "activate_window": {"window_name": "no such window"},
        "close_window": {"window_name": "no such window"},
    }
    do(attempt, *(step(kind, **parameters) for kind, parameters in steps.items()))
    for words in ("no-such-program-at-all", "/no/such.png", "was activated", "was closed"):
        assert words in caplog.text
    silent = AttemptContext(Controller(Machine("gone", "127.0.0.1", 9)), attempt.folder, run_steps=attempt.run_steps)
    for kind, parameters in steps.items():
        with pytest.raises(MachineFailed) as failure:
            do(silent, step(kind, **parameters))
        assert not isinstance(failure.value, MachineRefused)


def test_a_command_that_the_machine_cannot_run_is_tried_five_times(
    attempt: AttemptContext, caplog: pytest.LogCaptureFixture
) -> None:
    do(attempt, step("execute", command=["no-such-program-at-all"], until={"returncode": 0}, stdout="kept.txt"))
    assert caplog.text.count("could not be run") == 5
    assert not (attempt.folder / "kept.txt").exists()


def test_actions_are_performed_and_replayed(attempt: AttemptContext, tmp_path: Path) -> None:
    move = {"action_type": "MOVE_TO", "parameters": {"x": 30, "y": 40}}
    do(attempt, step("act", action_list=[move, "pyautogui.moveRel(1, 1)", "DONE"]))
    assert asyncio.run(attempt.controller.cursor_position()) == (31, 41)
    trajectory = tmp_path / "traj.jsonl"
    trajectory.write_text("".join(json.dumps({"step_num": n, "action": move}) + "\n" for n in range(2)))
    do(attempt, step("replay", trajectory=str(trajectory)))
    assert asyncio.run(attempt.controller.cursor_position()) == (30, 40)
    with pytest.raises(EnvironmentFailed, match="JUMP"):
        do(attempt, step("act", action_list=[{"action_type": "JUMP"}]))


def test_the_wallpaper_changes(attempt: AttemptContext) -> None:
    before = asyncio.run(attempt.controller.screenshot())
    picture = asyncio.run(attempt.controller.screenshot())
    asyncio.run(attempt.controller.upload("~/picture.png", picture))
    do(attempt, step("change_wallpaper", path="~/picture.png"))
    assert asyncio.run(attempt.controller.wallpaper()) == picture
    assert asyncio.run(attempt.controller.screenshot()) != before


def test_visits_are_added_to_the_history_of_the_browser(attempt: AttemptContext, tmp_path: Path) -> None:
    known = tmp_path / "known.sqlite"
    with sqlite3.connect(known) as connection:
        connection.executescript(
            "CREATE TABLE urls (id INTEGER PRIMARY KEY AUTOINCREMENT, url TEXT, title TEXT, visit_count INTEGER,"
            " typed_count INTEGER, last_visit_time INTEGER, hidden INTEGER);"
            "CREATE TABLE visits (id INTEGER PRIMARY KEY AUTOINCREMENT, url INTEGER, visit_time INTEGER, from_visit INTEGER,"
            " transition INTEGER, segment_id INTEGER, visit_duration INTEGER);"
        )
    connection.close()
    place = "~/.config/chromium/Default/History"
    asyncio.run(attempt.controller.upload(place, known.read_bytes()))
    visit = {"url": "https://example.org/", "title": "Example", "visit_time_from_now_in_seconds": 60}
    do(attempt, step("update_browse_history", history=[visit]))
    stored = asyncio.run(attempt.controller.file(place))
    assert stored is not None
    known.write_bytes(stored)
    connection = sqlite3.connect(known)
    rows = connection.execute(
        "SELECT urls.url, title, visit_time FROM urls JOIN visits ON visits.url = urls.id"
    ).fetchall()
    connection.close()
    assert [row[:2] for row in rows] == [("https://example.org/", "Example")]
    asyncio.run(attempt.controller.upload(place, b"this is no database at all" * 100))
    with pytest.raises(EnvironmentFailed, match="history"):
        do(attempt, step("update_browse_history", history=[visit]))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[str]:
    """The DevTools address of a real browser."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "the tests need chromium"
    for number in range(3):
        process, address = _start_browser(program, tmp_path / f"home{number}")
        try:
            if address:
                yield address
                return
        finally:
            process.kill()
            process.communicate(timeout=30)
    raise AssertionError("chromium does not start")


def _start_browser(program: str, home: Path) -> tuple[subprocess.Popen[str], str]:
    """Return the process and its DevTools address; empty if the process ended."""
    command = [program, "--headless=new", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={home}"]
    environment = {**os.environ, "HOME": str(home)}
    process = subprocess.Popen([*command, "about:blank"], stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"ws://([\d.]+:\d+)/", line):
            return process, found[1]
    return process, ""


def test_tabs_are_opened_and_closed(browser: str, site: str, attempt: AttemptContext) -> None:
    host, _, port = browser.rpartition(":")
    reached = AttemptContext(
        Controller(Machine("b", host, 1, ports={9222: int(port)})), attempt.folder, run_steps=set_up
    )

    def titles() -> list[str]:
        import urllib.request

        with urllib.request.urlopen(f"http://{browser}/json/list", timeout=30) as reply:
            return sorted(page["title"] for page in json.load(reply) if page["type"] == "page")

    do(reached, step("chrome_open_tabs", urls_to_open=[f"{site}/", f"{site}/two.html"]))
    assert titles() == ["One", "Two"]
    do(reached, step("chrome_close_tabs", urls_to_close=[f"{site}/two.html"]))
    assert titles() == ["One"]


def test_missing_requirements_of_steps_are_reported() -> None:
    reported = missing_for_steps(
        [step("launch"), step("login"), step("googledrive"), step("proxy"), step("dance"), step("dance")]
    )
    assert len(reported) == 4
    assert "Google account" in reported[0]
    assert "proxy" in reported[2]
    assert "'dance'" in reported[3]
    assert missing_for_steps([step(kind) for kind in STEPS]) == []


def test_a_failing_step_is_named(attempt: AttemptContext) -> None:
    for bad, reason in (
        (step("dance"), "dance"),
        (step("launch"), "command"),
        (step("upload_file", files=[{"local_path": "no/such", "path": "x"}]), "is not a file"),
        (step("upload_file", files=[{"local_path": "/etc/passwd", "path": "x"}]), "outside of the folder"),
        (step("replay", trajectory="../secret.json"), "outside of the folder"),
        (step("download", files=[{"url": "file:///etc/passwd", "path": "x"}]), "cannot fetch"),
        (step("login", settings_file="x", platform="googledrive"), "Google account"),
    ):
        with pytest.raises(EnvironmentFailed, match=reason):
            do(attempt, step("sleep", seconds=0), bad)
