"""`TrainingServer`: a `RolloutService` over HTTP, for trainers in other images. `client.py` has the client.

Each request may be repeated without a second effect: tasks are stored once by their ids, a delivery is accepted once, and a
request for groups that has the number of the last one gets the same groups.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import uvicorn
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
    ServerLost,
    ServiceStopped,
    UsageError,
)
from paragent.training.client import group_to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from paragent.training.service import RolloutService

__all__ = ["TrainingServer"]

_LARGEST_BODY = 64 << 20
"""Bytes of a request: 100 tasks whose metadata have half a megabyte each."""
_MOST_TASKS = 1000
_MOST_GROUPS = 64
_LONGEST_WAIT = 60.0
_SHORTEST_TOKEN = 16
_START_TIMEOUT = 10.0
_STOP_TIMEOUT = 10.0
_STATUSES = {AccessDenied: 401, GroupNotOwed: 409, ServiceStopped: 410, UsageError: 400, TimeoutError: 504}
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
        self._host, self.port = host, port
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self._host, self._host)  # noqa: S104 - recognised, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, self.port), family=family)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._host} port {self.port}: {error.strerror}; choose another --port or --host"
            ) from error
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=server.run, args=([listener],), name="paragent-training-http", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT
        while not server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not server.started:
            self.__exit__()
            raise ServerLost(f"the training server did not start within {_START_TIMEOUT:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT)

    def _app(self) -> Starlette:
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
                return JSONResponse(await run_in_threadpool(answer, body))
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


def _problem(error: BaseException, message: str, status: int) -> Response:
    return JSONResponse({"error": {"type": type(error).__name__, "message": message}}, status)


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
        self._replaced: set[str] = set()
        """Trainers that another one has replaced."""
        self._answered: tuple[int, dict[str, Any]] | None = None
        """The number of the last request for groups, and its answer."""

    def add_tasks(self, body: dict[str, Any]) -> dict[str, Any]:
        tasks = _value(body, "tasks", list)
        if len(tasks) > _MOST_TASKS:
            raise UsageError(f"send at most {_MOST_TASKS:,} tasks in one request, not {len(tasks):,}")
        return {"stored": self._service.store_tasks(tasks, _wait(body))}

    def next_groups(self, body: dict[str, Any]) -> dict[str, Any]:
        consumer, number = _value(body, "consumer", str), _value(body, "request", int)
        with self._taking:
            if consumer in self._replaced:
                raise UsageError(
                    "another trainer has taken over the groups of this service; only one can use it at a time"
                )
            if consumer != self._consumer:
                if self._consumer is not None:
                    self._replaced.add(self._consumer)
                self._consumer, self._answered = consumer, None
                self._service.redeliver()
            if self._answered is not None and self._answered[0] == number:
                return self._answered[1]
            answer = self._take(min(_value(body, "limit", int, 1), _MOST_GROUPS), _wait(body))
            self._answered = (number, answer)
            return answer

    def _take(self, limit: int, wait: float) -> dict[str, Any]:
        """Wait for a group, and take further ones that have finished."""
        groups: list[dict[str, Any]] = []
        try:
            for _ in range(max(1, limit)):
                group = self._service.next_group(0.0 if groups else wait)
                if group is None:
                    return {"groups": groups, "more": bool(groups)}
                groups.append(group_to_json(group))
        except TimeoutError:
            pass
        return {"groups": groups, "more": True}

    def accept(self, body: dict[str, Any]) -> dict[str, Any]:
        self._service.accept(_value(body, "group", str), _value(body, "delivery", str))
        return {"accepted": True}

    def publish(self, body: dict[str, Any]) -> dict[str, Any]:
        self._service.published(_value(body, "version", int))
        return {"version": body["version"]}

    def pause(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            self._service.pause(_wait(body))
        except PauseTimeout:
            return {"in_flight": True}
        return {"in_flight": False}

    def resume(self, _: dict[str, Any]) -> dict[str, Any]:
        self._service.resume()
        return {}

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
        return asdict(self._service.status())


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
