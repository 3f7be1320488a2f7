"""Web search: a search service of the user's choice, or a local index."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paragent.envs.tools import ToolFailed
from paragent.errors import ConfigError
from paragent.models.credentials import read_env_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paragent.envs.rag.index import Index

__all__ = ["SEARCH_SERVICES", "Hit", "LocalSearch", "RemoteSearch", "Search", "remote_search"]

_LIMIT = 20.0
"""Seconds for one request to a search service."""
_TRIES = 3
_MOST = 8
"""Results to show."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One result."""

    title: str
    url: str
    text: str


class Search(Protocol):
    """A search, as the environment uses it."""

    async def find(self, query: str) -> list[Hit]:
        """Return results, best first.

        Raises:
            ToolFailed: the service failed; the message is for the agent.
        """


@dataclass(frozen=True, slots=True)
class SearchService:
    """The protocol of one search service."""

    variable: str
    """The environment variable, or line of `.env`, with the API key; for SearXNG with the address of the server."""
    request: Callable[[str, str], dict[str, Any]]
    """Returns the arguments of `httpx.AsyncClient.request`, given the variable's value and the query."""
    results: str
    """The key of the list of results in the response."""
    names: tuple[str, str, str]
    """The keys of title, address and text in a result."""


SEARCH_SERVICES: Mapping[str, SearchService] = {
    "searxng": SearchService(
        "SEARXNG_URL",
        lambda url, query: {
            "method": "GET",
            "url": f"{url.rstrip('/')}/search",
            "params": {"q": query, "format": "json"},
        },
        "results",
        ("title", "url", "content"),
    ),
    "serper": SearchService(
        "SERPER_API_KEY",
        lambda key, query: {
            "method": "POST",
            "url": os.environ.get("SERPER_URL", "https://google.serper.dev/search"),
            "headers": {"X-API-KEY": key},
            "json": {"q": query},
        },
        "organic",
        ("title", "link", "snippet"),
    ),
    "tavily": SearchService(
        "TAVILY_API_KEY",
        lambda key, query: {
            "method": "POST",
            "url": os.environ.get("TAVILY_URL", "https://api.tavily.com/search"),
            "headers": {"Authorization": f"Bearer {key}"},
            "json": {"query": query},
        },
        "results",
        ("title", "url", "content"),
    ),
}


def remote_search(name: str) -> RemoteSearch:
    """Return a search by a service.

    Raises:
        ConfigError: its key or address is neither in the environment nor in the file `.env` of the current folder.
    """
    service = SEARCH_SERVICES[name]
    secret = os.environ.get(service.variable) or read_env_file(Path.cwd() / ".env").get(service.variable, "")
    if not secret:
        raise ConfigError(f"the search {name!r} needs {service.variable}: set it in the environment or in .env")
    return RemoteSearch(name, service, secret)


class RemoteSearch:
    """Searches with a search service."""

    def __init__(self, name: str, service: SearchService, secret: str) -> None:
        self._name, self._service, self._secret = name, service, secret

    async def find(self, query: str) -> list[Hit]:
        import httpx  # only needed with a search service

        async with httpx.AsyncClient(timeout=_LIMIT) as client:
            for attempt in range(1, _TRIES + 1):
                try:
                    response = await client.request(**self._service.request(self._secret, query))
                    if response.status_code not in (429, 500, 502, 503, 504):
                        response.raise_for_status()
                        return self._hits(response.json())
                    problem = f"status {response.status_code}"
                except httpx.TransportError as error:
                    problem = type(error).__name__
                except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
                    raise ToolFailed(f"the search by {self._name} failed: {type(error).__name__}") from None
                if attempt < _TRIES:
                    await asyncio.sleep(attempt)
        raise ToolFailed(f"the search by {self._name} did not answer ({problem}); try again later")

    def _hits(self, answer: Any) -> list[Hit]:
        title, url, text = self._service.names
        found = answer.get(self._service.results, [])[:_MOST]
        return [Hit(str(one.get(title, "")), str(one[url]), str(one.get(text, ""))) for one in found]


class LocalSearch:
    """Searches a knowledge base in which the ids of documents are addresses of pages."""

    def __init__(self, index: Index) -> None:
        self._index = index

    async def find(self, query: str) -> list[Hit]:
        found = await asyncio.to_thread(self._index.search, query, _MOST)
        return [Hit(one.document.title, one.document.id, one.passage[:300]) for one in found]
