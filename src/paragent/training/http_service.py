"""`TrainingServer`: a `RolloutService` over HTTP, for trainers in other images. `client.py` has the client.

Each request may be repeated without a second effect: tasks are stored once by their ids, a delivery is accepted once, and a
request for groups that has the number of the last one gets the same groups. Of the other changing requests, one that arrives
after a later one of the same trainer is ignored. Trainers that were replaced are refused.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paragent._internal.tracebacks import described
from paragent.errors import (
    AccessDenied,
    ConfigError,
    GroupNotOwed,
    ParagentError,
    PauseTimeout,
    ServiceStopped,
    UsageError,
)
from paragent.training.client import Group, group_to_json
from paragent.transport.http_server import CLOSE, HttpServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from paragent.training.service import RolloutService

__all__ = ["TrainingServer"]

_LARGEST_BODY = 64 << 20
"""Bytes of a request: 100 tasks whose metadata have half a megabyte each."""
_MOST_TASKS = 1000
_MOST_GROUPS = 64
_LONGEST_WAIT = 60.0
_LONGEST_NAME = 200
"""Characters of the name of a trainer, which is kept in the journal."""
_SHORTEST_TOKEN = 16
_JSON = "application/json"
_STATUSES = {GroupNotOwed: 409, ServiceStopped: 410, UsageError: 400, TimeoutError: 504}
"""The HTTP status of each class of error; the first that matches."""


class TrainingServer:
    """A server in a thread of this process: a context manager that listens from `__enter__` to `__exit__`.

    Args:
        service: the open service.
        host: where to listen.
        port: 0: a free port.
        token: the secret that clients send as `Authorization: Bearer`; None: a random one.

    Raises:
        ConfigError: the token is too short.
        UsageError: (on entering) the address cannot be listened at.
        ServerLost: (on entering) the server does not start.
    """

    def __init__(
        self, service: RolloutService, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        self.token = secrets.token_urlsafe(24) if token is None else token
        if len(self.token) < _SHORTEST_TOKEN:
            raise ConfigError(
                f"the token must have at least {_SHORTEST_TOKEN} characters; without --token it is random"
            )
        self._api = _Api(service)
        self._server = HttpServer(self._app, host, port, "the training server")

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    @property
    def url(self) -> str:
        """The address for clients."""
        return self._server.address

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def _app(self, _: int) -> Starlette:
        changing: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/v1/tasks": self._api.add_tasks,
            "/v1/groups": self._api.next_groups,
            "/v1/accept": self._api.accept,
            "/v1/version": self._api.publish,
            "/v1/pause": self._api.pause,
            "/v1/resume": self._api.resume,
        }
        routes = [Route(path, self._endpoint(answer), methods=["POST"]) for path, answer in changing.items()]
        return Starlette(routes=[*routes, Route("/v1/status", self._endpoint(self._api.status), methods=["GET"])])

    def _endpoint(self, answer: Callable[[dict[str, Any]], Any]) -> Any:
        async def handle(request: Request) -> Response:
            try:
                self._check_token(request)
                body = await _read_body(request) if request.method == "POST" else {}
                content = await run_in_threadpool(answer, body)
                return Response(content if isinstance(content, bytes) else _encode(content), media_type=_JSON)
            except AccessDenied as error:
                return _problem(error, str(error), 401, CLOSE)
            except (ParagentError, TimeoutError) as error:
                status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)
                return _problem(error, str(error), status)
            except Exception as error:  # noqa: BLE001 - the client must get an answer
                return _problem(error, f"unexpected error of the service: {described(error)}", 500)

        return handle

    def _check_token(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise AccessDenied("the token is wrong or missing: send `Authorization: Bearer TOKEN`")


def _problem(error: BaseException, message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"type": type(error).__name__, "message": message}}, status, headers)


def _encode(value: Any) -> bytes:
    """Return a value as JSON; raise ValueError or TypeError if it cannot be written."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


async def _read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        UsageError: it is too large, or not a JSON object.
    """
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _LARGEST_BODY:
            raise UsageError(f"the body is larger than {_LARGEST_BODY:,} bytes: send fewer tasks in one request")
    try:
        body = json.loads(bytes(content) or b"{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


class _Api:
    """The answers to requests; each runs in a thread of its own."""

    def __init__(self, service: RolloutService) -> None:
        self._service = service
        self._taking = threading.Lock()
        """Protects the following, and lets one request take groups at a time."""
        self._consumer: str | None = None
        """The trainer that took groups last."""
        self._answered: tuple[int, bytes] | None = None
        """The number of the last request for groups, and its answer."""
        self._changing = threading.Lock()
        """Lets one trainer change something at a time, so that one that is being replaced does so before or not at all."""
        self._numbers: dict[tuple[str, str], int] = {}
        """The numbers of the last requests of each trainer: of `version`, and of `pause` and `resume`."""

    def add_tasks(self, body: dict[str, Any]) -> dict[str, Any]:
        tasks = _value(body, "tasks", list)
        if len(tasks) > _MOST_TASKS:
            raise UsageError(f"send at most {_MOST_TASKS:,} tasks in one request, not {len(tasks):,}")
        return {"stored": self._service.store_tasks(tasks, _wait(body))}

    def next_groups(self, body: dict[str, Any]) -> bytes:
        consumer, number = _consumer(body), _value(body, "request", int)
        with self._taking:
            with self._changing:
                self._service.take_over(consumer)
            if consumer != self._consumer:
                self._consumer, self._answered = consumer, None
            if self._answered is not None and self._answered[0] == number:
                return self._answered[1]
            answer = self._take(min(_value(body, "limit", int, 1), _MOST_GROUPS), _wait(body))
            self._answered = (number, answer)
            return answer

    def _take(self, limit: int, wait: float) -> bytes:
        """Wait for a group, and take further ones that have finished."""
        groups: list[bytes] = []
        more = True
        try:
            for _ in range(max(1, limit)):
                group = self._service.next_encoded_group(0.0 if groups else wait, _encode_group)
                if group is None:
                    more = bool(groups)
                    break
                groups.append(group)
        except TimeoutError:
            pass
        except ParagentError:
            if not groups:  # else they are delivered, and the next request gets the error
                raise
        return b'{"groups":[%s],"more":%s}' % (b",".join(groups), _encode(more))

    def accept(self, body: dict[str, Any]) -> dict[str, Any]:
        consumer, group, delivery = _consumer(body), _value(body, "group", str), _value(body, "delivery", str)
        with self._changing:
            self._service.check_trainer(consumer)
            self._service.accept(group, delivery)
        return {"accepted": True}

    def publish(self, body: dict[str, Any]) -> dict[str, Any]:
        version = _value(body, "version", int)
        with self._changing:
            if self._is_current(body, "version"):
                self._service.published(version)
                self._set_current(body, "version")
        return {"version": version}

    def pause(self, body: dict[str, Any]) -> dict[str, Any]:
        seconds = _wait(body)
        with self._changing:
            if not self._is_current(body, "pause"):
                return {"in_flight": False}
            self._set_current(body, "pause")
        try:
            self._service.pause(seconds)
        except PauseTimeout:
            return {"in_flight": True}
        return {"in_flight": False}

    def resume(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._changing:
            if self._is_current(body, "pause"):
                self._service.resume()
                self._set_current(body, "pause")
        return {}

    def _is_current(self, body: dict[str, Any], kind: str) -> bool:
        """Return whether no later request of this kind by the same trainer has come before.

        Raises:
            UsageError: another trainer has replaced this one.
        """
        consumer, number = _consumer(body), int(_value(body, "request", int))
        self._service.check_trainer(consumer)
        return number >= self._numbers.get((kind, consumer), number)

    def _set_current(self, body: dict[str, Any], kind: str) -> None:
        self._numbers[kind, body["consumer"]] = body["request"]

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
        return asdict(self._service.status())


def _encode_group(group: Group) -> bytes:
    return _encode(group_to_json(group))


def _consumer(body: dict[str, Any]) -> str:
    """Return which trainer sent a request.

    Raises:
        UsageError: the body does not say it.
    """
    consumer: str = _value(body, "consumer", str)
    if not 0 < len(consumer) <= _LONGEST_NAME:
        raise UsageError(f"`consumer` must have 1 to {_LONGEST_NAME} characters")
    return consumer


def _value(body: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Return a value of a body.

    Raises:
        UsageError: it is missing or has another type.
    """
    value = body.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError(f"the body needs `{name}` of type {kind.__name__}, not {json.dumps(value)[:60]}")
    return value


def _wait(body: dict[str, Any]) -> float:
    """Return how many seconds a request waits for what it asks for."""
    seconds = body.get("wait", 0.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LONGEST_WAIT:
        raise UsageError(
            f"`wait` must be a number of seconds from 0 to {_LONGEST_WAIT:g}, not {json.dumps(seconds)[:60]}"
        )
    return float(seconds)
