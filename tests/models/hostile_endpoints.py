"""Endpoints that attack: one repeats the secrets of requests, as misconfigured proxies do, another one redirects."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, urlsplit

__all__ = ["ANSWERS", "KEY", "redirecting", "repeating_endpoint"]

KEY = 'sk-real-Abc123/+"&xyz-4567890'
"""A key with characters that JSON, addresses and web pages write in another way."""


def _error(status: int, message: str) -> tuple[int, str, str]:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": message, "code": message}}
    return status, "application/json", json.dumps(body)


def _stream(*events: Any) -> tuple[int, str, str]:
    return 200, "text/event-stream", "".join(f"data: {json.dumps(event)}\n\n" for event in events)


ANSWERS: dict[str, Callable[[str], tuple[int, str, str]]] = {
    "401": lambda key: _error(401, f"Incorrect API key provided: {key}. You can find yours at https://x"),
    "400": lambda key: _error(400, f"LiteLLM: Authentication Error, Received={key}, expected to start with 'sk-'"),
    "403": lambda key: _error(403, f"Authorization: Bearer {key} is blocked"),
    "404": lambda key: _error(404, f"no model for {key}"),
    "422 with a structure": lambda key: (
        422,
        "application/json",
        json.dumps({"detail": [{"loc": ["header", key], "msg": f"bad {key}", "input": {"authorization": key}}]}),
    ),
    "429": lambda key: _error(402, f"no credit for {key}"),
    "500": lambda key: _error(500, f"Traceback: headers={{'Authorization': 'Bearer {key}'}}"),
    "500 as text": lambda key: (500, "text/plain", f"panic: {key}"),
    "502 as a page": lambda key: (502, "text/html", f"<html>{html.escape(key)} {key}</html>"),
    "quoted in JSON": lambda key: _error(400, json.dumps({"authorization": f"Bearer {key}"})),
    "in an address": lambda key: _error(400, f"POST https://x/v1?api_key={quote(key, safe='')}&a=1 failed"),
    "base64": lambda key: _error(400, f"Authorization: Basic {base64.b64encode(key.encode()).decode()}"),
    "without its end": lambda key: _error(400, f"the key {key[:20]}... is unknown"),
    "without its start": lambda key: _error(400, f"the key ...{key[-18:]} is unknown"),
    "200 as text": lambda key: (200, "text/plain", f"denied {key}"),
    "200 as a page": lambda key: (200, "text/html", f"<html>{key}</html>"),
    "200 without a completion": lambda key: (200, "application/json", json.dumps({"detail": f"denied {key}"})),
    "an error in a stream": lambda key: _stream(
        {"type": "error", "message": f"denied {key}", "error": {"type": "api_error", "message": f"denied {key}"}}
    ),
    "a chunk that cannot be read": lambda key: _stream({"choices": f"denied {key}", "type": key}),
}
"""Answers by name: the status, the content type and the body that an endpoint sends to a request with a key."""


@contextlib.contextmanager
def _serving(answer: Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    """Serve an HTTP server whose requests get `answer(request)`: status, headers and body; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, headers, body = answer(self)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextlib.contextmanager
def repeating_endpoint(answer: Callable[[str], tuple[int, str, str]]) -> Iterator[str]:
    """Serve an endpoint that sends `answer(key)`, with the key of the request also in its headers; yield its address."""

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        status, kind, body = answer(key)
        return status, {"Content-Type": kind, "x-request-id": f"request of {key}"}, body.encode()

    with _serving(respond) as url:
        yield url


@contextlib.contextmanager
def redirecting(status: int = 200, location: str = "") -> Iterator[tuple[str, list[str]]]:
    """Serve a server that redirects all requests; yield its address and the paths of the requests that it got."""
    got: list[str] = []

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        got.append(request.path)
        return status, {"Location": location + urlsplit(request.path).path} if location else {}, b""

    with _serving(respond) as url:
        yield url, got
