"""Access to the view: the token and the cookie, checks of each request, headers of each response.

The data of a run may be confidential, and the view can control live runs. So a web page that is open in the same browser must
neither read nor change anything, even if it guesses the port or gives the server's address another name (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from paragent.transport.http_server import CLOSE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["AccessControl", "is_loopback"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
}
_READING = {"GET", "HEAD"}
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - recognised, not bound


def is_loopback(host: str) -> bool:
    """Return whether only processes of this host can connect to a server that listens on `host`."""
    return host in _LOOPBACK_NAMES or host.startswith("127.")


class AccessControl:
    """ASGI middleware that lets a request pass only if it is authenticated and comes from a page of this server.

    `token` is in the printed link. The first request with it gets a cookie and a redirect to the same address without the token.

    Args:
        app: the application to protect.
        host: the address that the server listens on.
        port: its port, a part of the cookie's name because cookies are shared by all ports of a host.
        token: the secret; programs send it as `Authorization: Bearer`.
        once: further tokens, each for one exchange: the link that is opened in a browser is on its command line, where other
            users of the host can read it.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, token: str, once: set[str]) -> None:
        self._app = app
        self._host = host.lower()
        # Asked once, because the name server may take seconds to answer.
        self._names = {one().lower() for one in (socket.gethostname, socket.getfqdn) if self._host in _WILDCARDS}
        self._token, self._once = token, once
        self._cookie = f"paragent-view-{port}"
        self._session = secrets.token_urlsafe(32)
        """The value of the cookie. The token is not used, because links are copied more carelessly than cookies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no other protocol is offered

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the response to a request that may not pass, or that exchanges the token for the cookie."""
        headers = Headers(scope=scope)
        problem = self._foreign(scope["method"], headers)
        if problem:
            return _refusal(403, problem, scope)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and scope["method"] == "GET":
            if given[0] in self._once:
                self._once.discard(given[0])
            elif not _equal(given[0], self._token):
                return _refusal(
                    401, "the token in the link is wrong: the server was started again. Use the new link", scope
                )
            return self._exchange(scope, [(name, value) for name, value in query if name != "token"])
        if not self._is_authenticated(headers):
            return _refusal(401, "use the link with the token that `paragent view` printed", scope)
        return None

    def _foreign(self, method: str, headers: Headers) -> str:
        """Return why a request does not come from this server's own pages or from the user; empty if it does."""
        host = headers.get("host", "")
        if not self._is_own_name(_name_of(host)):
            return f"this server is not called {host!r}; use the printed link"
        if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            return "requests from pages of other sites are refused; paste the link into the address bar"
        if method in _READING:
            return ""
        if headers.get("origin") != f"http://{host}":
            return "a changing request needs the header Origin with the address of this server"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return "a changing request needs the header Content-Type: application/json"
        return ""

    def _is_own_name(self, name: str) -> bool:
        """Return whether the server listens on this name. Ports are not compared: they differ behind a forwarded port."""
        if name in _LOOPBACK_NAMES:
            return True
        if self._host not in _WILDCARDS:
            return name == self._host
        return _is_address(name) or name in self._names

    def _is_authenticated(self, headers: Headers) -> bool:
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(credential.strip(), self._token):
            return True
        # Not `http.cookies`: it drops all cookies if one of them, of another server on this host, is malformed.
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return any(name == self._cookie and _equal(value, self._session) for name, _, value in cookies)

    def _exchange(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        # "//" would begin an address with another host.
        path = "/" + scope["path"].lstrip("/")
        response = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), status_code=303)
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return response


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port and the brackets of IPv6."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode())


def _refusal(status: int, problem: str, scope: Scope) -> Response:
    content: Any = {"error": problem}
    if scope["path"].startswith("/api/"):
        return JSONResponse(content, status, CLOSE)
    return PlainTextResponse(f"paragent view: {problem}\n", status, CLOSE)
