"""The server of the view: the API, the built pages, and the process around them."""

from __future__ import annotations

import contextlib
import secrets
import threading
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from paragent.errors import UsageError
from paragent.store.formats import FORMATS
from paragent.transport.http_server import HttpServer
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
        self._once: set[str] = set()
        self._closing = threading.Event()
        self._server = HttpServer(self._make_app, settings.host, settings.port, "the server of the view")

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
    def host(self) -> str:
        """The address that it listens on."""
        return self._settings.host

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    @property
    def address(self) -> str:
        """The address of the server without a token."""
        return self._server.address

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.__exit__()

    def wait(self) -> None:
        """Block until the server ends, or until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self._server.wait()

    def _make_app(self, port: int) -> ASGIApp:
        app = create_app(self._settings, self._closing)
        return AccessControl(app, self.host, port, self.token, self._once)


def version() -> str:
    """Return the version of paragent; empty if it runs without being installed."""
    try:
        return metadata.version("paragent")
    except metadata.PackageNotFoundError:
        return ""
