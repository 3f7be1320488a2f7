"""Routes of the JSON API: parameters of requests to records."""

from __future__ import annotations

import functools
import math
import sqlite3
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from pydantic import TypeAdapter, ValidationError
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from paragent.errors import ParagentError, UsageError
from paragent.store.formats.images import image_type
from paragent.view.api import ControlRequest, NewNote
from paragent.view.comparison import MOST_RUNS, compare_runs
from paragent.view.encoding import to_json
from paragent.view.live import execute, list_events, run_events, write_note
from paragent.view.queries import MOST_ROWS, changed_rows, rollout_rows, run_detail
from paragent.view.runs import UnknownRun
from paragent.view.search import SearchIndex
from paragent.view.timeline import TimelineData
from paragent.view.transcripts import execution_detail, is_recording, raw_call, read_image, step_text

if TYPE_CHECKING:
    import threading
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from paragent.view.api import ControlAnswer, StepNote
    from paragent.view.runs import RunFolder, StoredRun

__all__ = ["BadRequest", "ViewApi", "answer_in_thread", "number_of"]

_Record = TypeVar("_Record")

_MOST_NUMBERS = 1 << 63
"""SQLite has no larger numbers."""
_LARGEST_BODY = 1 << 20
_LONGEST_NOTE = 20_000
_BUCKETS = 1000
_THREADS = 6
"""Queries at the same time. More would only compete for the interpreter; the others wait in a queue."""


class BadRequest(UsageError):
    """A parameter of a request is missing or malformed."""


class ViewApi:
    """The routes below `/api`.

    Args:
        folder: the runs to show.
        closing: set when the server stops.
    """

    def __init__(self, folder: RunFolder, closing: threading.Event) -> None:
        self._folder = folder
        self._closing = closing

    def routes(self) -> list[Route]:
        """Return the routes, with paths relative to `/api`."""
        reading: dict[str, Callable[[Request], Any]] = {
            "/runs": lambda _: self._folder.rows(),
            "/compare": self._compare,
            "/events": lambda _: list_events(self._folder, self._closing),
            "/runs/{run}": self._detail,
            "/runs/{run}/rollouts": self._rollouts,
            "/runs/{run}/timeline": self._timeline,
            "/runs/{run}/search": lambda request: (
                self._run(request).part(SearchIndex).search(request.query_params.get("q", ""))
            ),
            "/runs/{run}/events": lambda request: run_events(self._run(request), self._closing),
            "/runs/{run}/executions/{number:int}": lambda request: execution_detail(*self._execution(request)),
            "/runs/{run}/executions/{number:int}/raw/{step:int}": self._raw,
            "/runs/{run}/executions/{number:int}/text/{step:int}": self._text,
            "/runs/{run}/images/{number:int}/{file}": self._image,
        }
        changing: dict[str, Callable[..., Any]] = {
            "/runs/{run}/notes": self._note,
            "/runs/{run}/control": self._control,
        }
        return [
            *(Route(path, answer_in_thread(handler), methods=["GET"]) for path, handler in reading.items()),
            *(Route(path, answer_with_body(handler), methods=["POST"]) for path, handler in changing.items()),
        ]

    def _run(self, request: Request) -> StoredRun:
        return self._folder.get(request.path_params["run"])

    def _detail(self, request: Request) -> Any:
        run = self._run(request)
        run.part(TimelineData).warm()  # the page asks for it next
        return run_detail(run)

    def _compare(self, request: Request) -> Any:
        given = request.query_params.getlist("runs")
        names = given[0].split(",") if len(given) == 1 else given
        if not 2 <= len(names) <= MOST_RUNS:
            raise BadRequest(f"name 2 to {MOST_RUNS} runs, separated by commas")
        return compare_runs([self._folder.get(name) for name in names])

    def _timeline(self, request: Request) -> Any:
        start, end = (_time_of(request, name) for name in ("from", "to"))
        return self._run(request).part(TimelineData).timeline(start, end, number_of(request, "buckets", _BUCKETS))

    def _execution(self, request: Request) -> tuple[StoredRun, int]:
        number = request.path_params["number"]
        return self._run(request), number if number < _MOST_NUMBERS else 0

    def _raw(self, request: Request) -> Any:
        return raw_call(*self._execution(request), request.path_params["step"])

    def _text(self, request: Request) -> Response:
        text = step_text(*self._execution(request), request.path_params["step"])
        return PlainTextResponse(text.encode(errors="replace"))

    def _image(self, request: Request) -> Response:
        content = read_image(*self._execution(request), request.path_params["file"])
        if kind := image_type(content):
            return Response(content, media_type=kind)
        if is_recording(content):
            return Response(content, media_type="video/mp4", headers={"Content-Disposition": "attachment"})
        return JSONResponse({"error": "this file is not a PNG, JPEG, GIF or WebP image or an MP4 recording"}, 415)

    def _rollouts(self, request: Request) -> Any:
        run, limit = self._run(request), min(number_of(request, "limit", MOST_ROWS), MOST_ROWS)
        if "since" in request.query_params:
            return changed_rows(run, number_of(request, "since", 0), limit)
        return rollout_rows(run, number_of(request, "after", 0), limit)

    def _note(self, request: Request, body: bytes) -> StepNote:
        new = read_record(NewNote, body)
        numbers = (new.execution, new.step, new.number or 0)
        if not all(0 <= number < _MOST_NUMBERS for number in numbers) or not (new.text or new.number):
            raise BadRequest("a note needs an execution, a step and a text")
        if len(new.text) > _LONGEST_NOTE:
            raise BadRequest(f"a note has at most {_LONGEST_NOTE:,} characters")
        return write_note(self._run(request), new)

    def _control(self, request: Request, body: bytes) -> ControlAnswer:
        return execute(self._run(request), read_record(ControlRequest, body))


def read_record(record: type[_Record], body: bytes) -> _Record:
    """Return a record made from the JSON of a request.

    Raises:
        BadRequest: it is not JSON, or a field is missing or of the wrong type.
    """
    try:
        return TypeAdapter(record).validate_json(body, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRequest(f"{'.'.join(map(str, first['loc'])) or record.__name__}: {first['msg']}") from None


def number_of(request: Request, name: str, default: int) -> int:
    """Return a whole number of the query.

    Raises:
        BadRequest: it is not a whole number from 0 on.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise BadRequest(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _time_of(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise BadRequest(f"{name} must be a number of seconds")
    return value


def answer_in_thread(handler: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that calls `handler` in a thread, so that queries do not block other requests.

    A record becomes JSON; bytes are JSON already; a `Response` is sent as it is. Errors become JSON with the key `error`.
    """

    @functools.wraps(handler)
    async def endpoint(request: Request) -> Response:
        return await anyio.to_thread.run_sync(_answer, handler, request, limiter=_limiter())

    return endpoint


def answer_with_body(handler: Callable[..., Any]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that reads a request and calls `handler(request, body)` in a thread; `body` is its bytes."""

    async def endpoint(request: Request) -> Response:
        content = b""
        async for part in request.stream():
            content += part
            if len(content) > _LARGEST_BODY:
                return JSONResponse({"error": f"a request has at most {_LARGEST_BODY:,} bytes"}, 413)

        answer = functools.partial(handler, body=content)
        return await anyio.to_thread.run_sync(_answer, answer, request, limiter=_limiter())

    return endpoint


def _answer(handler: Callable[[Request], Any], request: Request) -> Response:
    try:
        found = handler(request)
    except UnknownRun as problem:
        return JSONResponse({"error": str(problem)}, 404)
    except UsageError as problem:
        return JSONResponse({"error": str(problem)}, 400)
    except (ParagentError, sqlite3.Error) as problem:  # a journal that is damaged, busy or of another version
        return JSONResponse({"error": str(problem)}, 503)
    if isinstance(found, Response):
        return found
    return Response(found if isinstance(found, bytes) else to_json(found), media_type="application/json")


@functools.cache
def _limiter() -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(_THREADS)
