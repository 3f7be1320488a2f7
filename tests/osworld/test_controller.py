"""The controller: read requests are repeated, requests with side effects are sent once, replies are parsed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from paragent.errors import LeaseLost, MachineFailed
from paragent.machines import Machine
from paragent.osworld import controller as module
from paragent.osworld.context import MachineRefused
from paragent.osworld.controller import Controller
from paragent.osworld.observation import DesktopObserver, Observation

Answer = TypeVar("Answer")
Handler = Callable[[str, bytes], "bytes | None"]


def with_guest(handler: Handler, do: Callable[[Controller], Awaitable[Answer]]) -> tuple[Answer, list[str]]:
    """Run a server that answers each request with the handler's result, or closes the connection if it is None."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):  # also if the test ends first
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = head.lower().split("\r\n")
            length = next((int(line[15:]) for line in headers if line.startswith("content-length")), 0)
            body = await reader.readexactly(length)
            path = head.split()[1]
            seen.append(path)
            if (reply := handler(path, body)) is not None:
                writer.write(reply)

    async def run() -> Answer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await do(Controller(Machine("m", "127.0.0.1", port, ports={9222: 4711})))

    return asyncio.run(asyncio.wait_for(run(), 60)), seen


def reply(status: int, body: bytes | dict[str, Any]) -> bytes:
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def caught(work: Awaitable[Any]) -> Exception:
    try:
        await work
    except MachineFailed as error:
        return error
    raise AssertionError("it succeeded")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_PAUSES", (0.01, 0.02))


@pytest.mark.parametrize(
    ("act", "path"),
    [
        (lambda guest: guest.execute(["python", "-c", "click"]), "/execute"),
        (lambda guest: guest.launch(["firefox"]), "/setup/launch"),
        (lambda guest: guest.open_file("/a"), "/setup/open_file"),
        (lambda guest: guest.close_window("a"), "/setup/close_window"),
        (lambda guest: guest.run_python("1"), "/run_python"),
        (lambda guest: guest.run_bash_script("ls"), "/run_bash_script"),
        (lambda guest: guest.execute_with_verification("ls", {}), "/execute_with_verification"),
        (lambda guest: guest.start_recording(), "/start_recording"),
    ],
)
def test_requests_with_side_effects_are_never_sent_twice(
    act: Callable[[Controller], Awaitable[Any]], path: str
) -> None:
    error, seen = with_guest(lambda *_: None, lambda guest: caught(act(guest)))
    assert isinstance(error, MachineFailed)
    assert seen == [path]


def test_read_requests_are_repeated() -> None:
    answers = [None, None, reply(200, b"png")]
    picture, seen = with_guest(lambda *_: answers.pop(0), lambda guest: guest.screenshot())
    assert (picture, seen) == (b"png", ["/screenshot"] * 3)
    error, seen = with_guest(lambda *_: None, lambda guest: caught(guest.accessibility_tree()))
    assert isinstance(error, MachineFailed)
    assert seen == ["/accessibility"] * 3


def test_a_command_waits_for_a_server_that_is_being_restarted() -> None:
    """After a refused connection the server has received nothing, so even a click is sent again."""

    async def run() -> int:
        served: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                served.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(reply(200, {"status": "success", "output": "", "error": "", "returncode": 0}))

        probe = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = probe.sockets[0].getsockname()[1]
        probe.close()
        await probe.wait_closed()
        module.RETRY_PAUSES = (0.5, 0.5)  # undone by the fixture
        asked = asyncio.create_task(Controller(Machine("m", "127.0.0.1", port)).execute(["click"]))
        await asyncio.sleep(0.2)
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            assert (await asked).status == "success"
        return len(served)

    assert asyncio.run(asyncio.wait_for(run(), 60)) == 1


def test_failed_commands_and_refused_commands_are_reported() -> None:
    ran = {"status": "success", "output": "out", "error": "err", "returncode": 3}
    done, _ = with_guest(lambda *_: reply(200, ran), lambda guest: guest.execute("x", shell=True))
    assert (done.output, done.error, done.returncode, done.status) == ("out", "err", 3, "success")
    refused = {"status": "error", "message": "no such file"}
    done, _ = with_guest(lambda *_: reply(500, refused), lambda guest: guest.execute("x"))
    assert (done.error, done.returncode, done.status) == ("no such file", -1, "error")
    done, _ = with_guest(lambda *_: reply(500, b"<html>"), lambda guest: guest.execute("x"))
    assert (done.error, done.status) == ("<html>", "error")


def test_files_sizes_and_positions_are_read() -> None:
    def answer(path: str, _: bytes) -> bytes:
        return {
            "/file": reply(404, {"error": "none"}),
            "/screen_size": reply(200, {"width": 800, "height": 600}),
            "/terminal": reply(200, {"output": None, "status": "success"}),
            "/cursor_position": reply(200, b"[3, 4]"),
            "/platform": reply(200, b"Linux"),
            "/desktop_path": reply(200, {"desktop_path": "/home/user/Desktop"}),
            "/list_directory": reply(200, {"directory_tree": {"type": "directory", "name": "a", "children": []}}),
        }[path]

    async def ask(guest: Controller) -> list[Any]:
        return [
            await guest.file("/nothing"),
            await guest.screen_size(),
            await guest.terminal(),
            await guest.cursor_position(),
            await guest.platform(),
            await guest.desktop_path(),
            (await guest.list_directory("a"))["name"],
            guest.devtools,
        ]

    found, _ = with_guest(answer, ask)
    assert found == [None, (800, 600), None, (3, 4), "Linux", "/home/user/Desktop", "a", "127.0.0.1:4711"]


@pytest.mark.parametrize("status", [400, 404, 500, 501, 502, 503, 401])
def test_refusals_and_machine_failures_are_different_errors(status: int) -> None:
    """OSWorld's server answers 500 for a directory, a file without permission, and a missing program."""

    async def ask(guest: Controller) -> list[Any]:
        refused = [await caught(guest.launch(["x"])), await caught(guest.change_wallpaper("/x"))]
        return [*refused, await caught(guest.accessibility_tree())]

    def handler(path: str, body: bytes) -> bytes:
        return reply(status, {"error": "Failed to serve file: [Errno 13] Permission denied"})

    errors, _ = with_guest(handler, ask)
    refusing = status in {400, 404, 500, 501}
    assert [isinstance(error, MachineRefused) for error in errors] == [refusing] * 3
    if refusing:
        assert with_guest(handler, lambda guest: guest.file("/folder"))[0] is None
    else:
        assert not isinstance(with_guest(handler, lambda guest: caught(guest.file("/folder")))[0], MachineRefused)


def test_a_desktop_without_accessibility_has_screenshots() -> None:
    def handler(path: str, body: bytes) -> bytes:
        return reply(200, b"picture") if path == "/screenshot" else reply(500, {"message": "there is no bus"})

    async def observe(guest: Controller) -> Observation:
        return await DesktopObserver(guest, "screenshot_a11y_tree", (640, 480), terminal=True).observe()

    seen, _ = with_guest(handler, observe)
    assert (seen.screenshot, seen.tree, seen.terminal) == (b"picture", None, None)
    assert "no accessibility tree" in seen.text


def test_a_machine_with_another_holder_raises_lease_lost() -> None:
    with pytest.raises(LeaseLost):
        with_guest(lambda *_: reply(409, {"message": "other"}), lambda guest: guest.screenshot())
    with pytest.raises(LeaseLost):
        with_guest(lambda *_: reply(409, {"message": "other"}), lambda guest: guest.execute("x"))
