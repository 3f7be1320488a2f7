"""`HttpSession`: POST requests to one URL with aiohttp alone, without the layers of `httpx` and `openai` above it."""

from __future__ import annotations

import functools
import importlib
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import openai
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MOST_REPLY_BYTES", "HttpSession", "is_direct"]

MOST_REPLY_BYTES = 256 << 20
"""The limit of one reply: token ids and log probabilities of a million tokens, with alternatives, take less."""
_KEEP_ALIVE = 15.0
"""Seconds that an idle connection is kept; servers close theirs after 5 s (uvicorn) to 75 s."""


@functools.cache
def _httpx() -> Any:
    """Return the package that `openai` uses: `httpx`, or its copy in newer versions."""
    client = next(kind for kind in openai.DefaultAsyncHttpxClient.__mro__ if kind.__name__ == "AsyncClient")
    return importlib.import_module(client.__module__.partition(".")[0])


def is_direct(url: str) -> bool:
    """Return whether requests to an address need neither a proxy nor a password in the address."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxied = bool(proxies.get(parts.scheme) or proxies.get("all")) and not proxy_bypass(parts.hostname or "")
    return not proxied and "@" not in parts.netloc


class HttpSession:
    """The connections to one host. They belong to the event loop of the first request.

    Args:
        headers: of every request.
        connect_timeout: seconds to connect.
        timeout: seconds for each part of a response.
    """

    def __init__(self, headers: Mapping[str, str], connect_timeout: float, timeout: float) -> None:
        self._headers = {**headers, "connection": "keep-alive"}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    async def post(self, url: str, content: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request; return the status, the headers and the body of the response. Redirects are not followed.

        Raises:
            openai.APITimeoutError: there is no response in time.
            openai.APIConnectionError: the connection failed.
            UnicodeEncodeError: a header is not ASCII.
        """
        session = self._session or self._open()
        target = self._urls.get(url) or self._urls.setdefault(url, URL(url, encoded=True))
        try:
            async with session.post(target, data=content, allow_redirects=False) as response:
                return response.status, response.headers, await _content(response)
        except TimeoutError as error:
            raise openai.APITimeoutError(request=self.request(url)) from error
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise openai.APIConnectionError(request=self.request(url)) from error

    def request(self, url: str) -> Any:
        """Return a request as errors of `openai` have it."""
        return _httpx().Request("POST", url)

    def response(self, url: str, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        """Return a response as errors of `openai` have it."""
        plain = [(name, value) for name, value in headers.items() if name.lower() != "content-encoding"]
        return _httpx().Response(status, headers=plain, content=body, request=self.request(url))

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        for value in self._headers.values():
            value.encode("ascii")
        connector = aiohttp.TCPConnector(limit=0, ssl=_tls_context(), keepalive_timeout=_KEEP_ALIVE)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
        return self._session


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of a response, after decompression.

    Raises:
        aiohttp.ClientError: it is larger than `MOST_REPLY_BYTES`.
    """
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > MOST_REPLY_BYTES:
            raise aiohttp.ClientPayloadError(f"the reply has more than {MOST_REPLY_BYTES >> 20} MB")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the settings of TLS that `openai` uses, with the certificates of `SSL_CERT_FILE` if it is set."""
    context: ssl.SSLContext = _httpx().create_ssl_context()
    return context
