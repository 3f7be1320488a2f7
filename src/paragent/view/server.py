"""The server of the view: the API, the built pages, and the process around them."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from paragent.errors import ServerLost, UsageError
from paragent.store.formats import FORMATS
from paragent.view.access import AccessControl
from paragent.view.api import PageSettings
from paragent.view.resources import ResourceApi
from paragent.view.routes import ViewApi, answer_in_thread
from paragent.view.runs import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Scope

    from paragent.transport import TlsConf

__all__ = ["BUNDLE", "ViewServer", "ViewSettings", "check_bundle", "create_app", "version"]

BUNDLE = Path(__file__).parent / "bundle"
"""The built pages. They are made by the build of the package, or in a clone by `make web`."""
_START_TIMEOUT = 10.0
_STOP_TIMEOUT = 10.0
_MOST_CONNECTIONS = 200
"""A browser opens six connections for each host, and one page one stream of events."""


@dataclass(slots=True, kw_only=True)
class ViewSettings:
    """Where the view gets its data, and where it listens."""

    folder: Path
    """The folder of the run directories."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free port."""
    bundle: Path = BUNDLE
    pools: Sequence[str] = ()
    """`host:port` of pools to show besides those of live runs."""
    agent_servers: Sequence[str] = ()
    """`host:port` of agent servers to show."""
    tls: TlsConf | None = None
    """For pools and agent servers that use TLS."""


def check_bundle(bundle: Path = BUNDLE) -> None:
    """Check that the pages are built.

    Raises:
        UsageError: they are not.
    """
    if not (bundle / "index.html").is_file():
        raise UsageError("the pages of the view are not built; in a clone of the repository, run: make web")


def create_app(settings: ViewSettings, closing: threading.Event) -> ASGIApp:
    """Return the application, without the checks of each request. Streams of events end when `closing` is set.

    Raises:
        UsageError: the pages are not built.
    """
    check_bundle(settings.bundle)
    folder = RunFolder(settings.folder)
    page_settings = PageSettings(version(), str(settings.folder), static=False, formats=FORMATS.names())
    api = ViewApi(folder, closing)
    resources = ResourceApi(folder, settings.pools, settings.agent_servers, settings.tls)
    problems: Any = {HTTPException: _http_problem, 500: _unexpected_error}
    pages = Mount("/", _Pages(directory=settings.bundle, html=True))
    data = Mount("/api", routes=[*api.routes(), *resources.routes()])
    # The pages look there first, because an export has its settings there.
    own = Route("/data/settings.json", answer_in_thread(lambda _: page_settings), methods=["GET"])
    return Starlette(routes=[data, own, pages], exception_handlers=problems)


class _Pages(StaticFiles):
    """The files of the bundle. Names below `assets` contain a digest of the content, so they may be kept forever."""

    def file_response(self, full_path: Any, stat_result: Any, scope: Scope, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        is_asset = Path(full_path).parent.name == "assets"
        response.headers["cache-control"] = "max-age=31536000, immutable" if is_asset else "no-cache"
        return response


async def _http_problem(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return JSONResponse({"error": problem.detail}, problem.status_code, problem.headers)


async def _unexpected_error(_: Request, problem: Exception) -> Response:
    return JSONResponse({"error": f"unexpected error of the server: {type(problem).__name__}; see its output"}, 500)


class ViewServer:
    """A server in a thread of this process: a context manager that listens from `__enter__` to `__exit__`.

    Raises:
        UsageError: (on entering) the address is in use or not one of this host, or the pages are not built.
        ServerLost: (on entering) the server does not start.
    """

    def __init__(self, settings: ViewSettings) -> None:
        self._settings = settings
        self.token = secrets.token_urlsafe(24)
        self.host = settings.host
        self.port = settings.port
        self._once: set[str] = set()
        self._closing = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def link(self, page: str = "") -> str:
        """Return the address of a page with the token; `page` is the part after `#`."""
        return self._link(page, self.token)

    def link_for_once(self, page: str = "") -> str:
        """Return the address of a page with a token that is valid for one use."""
        token = secrets.token_urlsafe(24)
        self._once.add(token)
        return self._link(page, token)

    def _link(self, page: str, token: str) -> str:
        return f"{self.address}/?token={token}" + (f"#{quote(page, safe='/?=&%')}" if page else "")

    @property
    def address(self) -> str:
        """The address of the server without a token."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)  # noqa: S104 - recognised, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def __enter__(self) -> Self:
        listener = _listen(self.host, self.port)
        self.port = listener.getsockname()[1]
        try:
            app = create_app(self._settings, self._closing)
        except BaseException:
            listener.close()
            raise
        config = uvicorn.Config(
            AccessControl(app, self.host, self.port, self.token, self._once),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="paragent-view", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not self._server.started:
            self.__exit__()
            raise ServerLost(f"the server of the view did not start within {_START_TIMEOUT:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._closing.set()
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT)  # a daemon thread: a query that takes longer ends with the process

    def wait(self) -> None:
        """Block until the server ends, or until Ctrl-C."""
        assert self._thread is not None
        with contextlib.suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(0.5)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UsageError: the port is in use, or the host has no such address.
    """
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --port or --host"
        ) from error
    return listener


def version() -> str:
    """Return the version of paragent; empty if it runs without being installed."""
    try:
        return metadata.version("paragent")
    except metadata.PackageNotFoundError:
        return ""
