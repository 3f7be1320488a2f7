"""The web server of the documentation. It listens on loopback only and serves nothing but the documentation."""

from __future__ import annotations

import functools
import mimetypes
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from paragent._internal.networks import names_loopback
from paragent.cli.docs.html import code_page, folder_page, markdown_page, missing_page, search_page, style_of_code
from paragent.errors import UsageError

if TYPE_CHECKING:
    from paragent.cli.docs.library import Library

__all__ = ["DocumentServer"]

_STYLE = Path(__file__).parent / "style.css"
_REQUEST_SECONDS = 20.0
"""How long a connection may stay without a request."""
_POLICY = (
    "default-src 'none'; img-src 'self'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Browsers load images and styles of this server, and execute nothing."""


class DocumentServer(ThreadingHTTPServer):
    """Serves the documentation at 127.0.0.1 until it is shut down."""

    daemon_threads = True

    def __init__(self, library: Library, port: int = 0) -> None:
        """Listen; the port 0 is a free one.

        Raises:
            UsageError: the port is in use, or only root may use it.
        """
        try:
            super().__init__(("127.0.0.1", port), functools.partial(_Handler, library))
        except OSError as error:
            raise UsageError(f"cannot listen on port {port}: {error.strerror}; choose another --port") from error

    def link(self, path: str = "README.md") -> str:
        """Return the address of a file, or of a path with a query."""
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error of a request, unless it is a browser that closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS

    def __init__(self, library: Library, *arguments: Any) -> None:
        self._library = library
        super().__init__(*arguments)  # handles the connection

    def do_GET(self) -> None:
        """Answer a request."""
        if not names_loopback(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.FORBIDDEN, "Open 127.0.0.1 or localhost")
            return
        try:
            address = urlsplit(self.path)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        path = unquote(address.path).strip("/")
        if not path:
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", "/README.md")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        words = " ".join(parse_qs(address.query).get("q", []))
        status, kind, body = self._answer(path, words)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str, words: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, type and content for a path."""
        library, page = self._library, next((one for one in self._library.pages if one.path == path), None)
        if path == "style.css":
            style = _STYLE.read_text(encoding="utf-8") + style_of_code()
            return HTTPStatus.OK, "text/css; charset=utf-8", style.encode()
        if path in library.files and path.startswith("docs/images/"):
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            return HTTPStatus.OK, kind, (library.root / path).read_bytes()
        status = HTTPStatus.OK
        if page is not None:
            text = markdown_page(library, page)
        elif path == "search":
            text = search_page(library, words)
        elif path in library.files and path.startswith("examples/"):
            text = code_page(library, path)
        elif library.folder(path):
            text = folder_page(library, path)
        else:
            status, text = HTTPStatus.NOT_FOUND, missing_page(library, path)
        return status, "text/html; charset=utf-8", text.encode()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""
