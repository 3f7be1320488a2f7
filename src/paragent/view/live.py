"""What is live: server-sent events of a run and of the list of runs, commands for live runs, notes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.responses import StreamingResponse

from paragent.errors import ParagentError
from paragent.rollout.control import ControlClient
from paragent.rollout.live_run import read_session_file
from paragent.store import JOURNAL_FILE, add_note, change_note
from paragent.view.api import ControlAnswer, ControlRequest, NewNote, StepNote
from paragent.view.encoding import to_json
from paragent.view.runs import UnknownRun

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator

    from paragent.view.runs import RunFolder, StoredRun

__all__ = ["COMMANDS", "execute", "list_events", "run_events", "write_note"]

COMMANDS = ("pause", "resume", "cancel", "retry", "set", "retire", "stop")
_INTERVAL = 1.0
"""Seconds between two events."""
_TICK = 0.2
"""Seconds within which a stream notices that the server stops."""
_HEARTBEAT = 15.0
"""Seconds without an event after which a comment is sent, so that neither side takes the connection for lost."""


def run_events(run: StoredRun, closing: threading.Event) -> StreamingResponse:
    """Return a stream with `status` (a `LiveRun`) about every second while a session is active, and `end` when it has ended.

    The stream of a run without an active session waits for one.
    """

    async def events() -> AsyncIterator[bytes]:
        was_live = False
        yield b"retry: 2000\n\n"
        async for is_heartbeat in _ticks(closing):
            live = await anyio.to_thread.run_sync(run.live)
            if live is not None:
                was_live = True
                yield _event("status", live.as_json())
            elif was_live:
                last = await anyio.to_thread.run_sync(read_session_file, run.path / "live")
                if last is not None and last.state.ended:
                    yield _event("status", last.as_json())
                yield _event("end", {"run": run.name})
                return
            elif is_heartbeat:
                yield b": no session is active\n\n"

    return _stream(events())


def list_events(folder: RunFolder, closing: threading.Event) -> StreamingResponse:
    """Return a stream with `runs` (a `RunList`) whenever the list of runs has changed, looked at every second."""

    async def events() -> AsyncIterator[bytes]:
        before = b""
        yield b"retry: 2000\n\n"
        async for is_heartbeat in _ticks(closing):
            rows = to_json(await anyio.to_thread.run_sync(folder.rows))
            if rows != before:
                before = rows
                yield b"event: runs\ndata: " + rows + b"\n\n"
            elif is_heartbeat:
                yield b": nothing has changed\n\n"

    return _stream(events())


async def _ticks(closing: threading.Event) -> AsyncIterator[bool]:
    """Yield every second until the server stops; True if it is time for a heartbeat."""
    passed = 0.0
    while not closing.is_set():
        yield passed % _HEARTBEAT < _INTERVAL
        for _ in range(round(_INTERVAL / _TICK)):
            if not closing.is_set():
                await asyncio.sleep(_TICK)
        passed += _INTERVAL


def _event(name: str, content: Any) -> bytes:
    # JSON has no line feeds outside of strings, and escapes those inside, so one `data` line is enough.
    return b"event: " + name.encode() + b"\ndata: " + to_json(content) + b"\n\n"


def _stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream")


def execute(run: StoredRun, request: ControlRequest) -> ControlAnswer:
    """Send a command to the session of a run and return its answer; `ok` is False if it was not executed."""
    if request.command not in COMMANDS:
        return ControlAnswer(False, f"there is no command {request.command[:40]!r}; there are: {', '.join(COMMANDS)}")
    try:
        return ControlAnswer(True, ControlClient(run.path).command(request.command, request.argument))
    except ParagentError as problem:
        return ControlAnswer(False, str(problem))


def write_note(run: StoredRun, new: NewNote) -> StepNote:
    """Add a note, or change or remove the note with the given number; the result of a removal has an empty text.

    Raises:
        UnknownRun: there is no such note.
        UsageError: there is no such execution.
        StoreFailed: the journal cannot be written.
    """
    journal = run.path / JOURNAL_FILE
    if new.number is not None:
        if not change_note(journal, new.number, new.text):
            raise UnknownRun(f"the run has no note {new.number}")
        with run.open() as opened:
            found = [note for note in opened.notes(new.execution) if note.number == new.number]
        return StepNote(new.number, new.step, new.text, found[0].at if found else 0.0)
    note = add_note(journal, new.execution, new.step, new.text)
    return StepNote(note.number or 0, note.step, note.text, note.at)
