"""`AnsweredEndpoints`: which endpoints have answered in a run, by a digest of key, model and address."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.models import ModelSettings
    from paragent.models.rate_limit_server import RateLimitServer
    from paragent.store import Journal, RolloutResult

__all__ = ["AnsweredEndpoints"]

_META = "answered"
"""The key in the journal: a JSON list of digests."""


class AnsweredEndpoints:
    """Knows whether endpoints have answered, in this session and in earlier ones.

    Args:
        journal: where it is remembered.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: set[str] = set(json.loads(journal.meta(_META) or "[]"))
        self._rate_limit: RateLimitServer | None = None
        self._watched: dict[str, ModelSettings] = {}
        """The settings of the agent's model, then those of the judge, by digest."""

    def knows(self, settings: ModelSettings) -> bool:
        """Return whether the endpoint has answered a request with these settings in an earlier session."""
        return _digest(settings) in self._known

    def watch(self, rate_limit: RateLimitServer, *models: ModelSettings) -> None:
        """Use what the workers report to a rate limit server; the first model is that of the agent."""
        self._rate_limit = rate_limit
        self._watched = {_digest(settings): settings for settings in models}

    @property
    def include_agents(self) -> bool:
        """Whether the endpoint of the agent's model has answered. A model without an endpoint has."""
        if self._rate_limit is None:
            return True
        digest, settings = next(iter(self._watched.items()))
        return digest in self._known or self._rate_limit.has_answered(settings)

    def record(self, results: Sequence[RolloutResult] = ()) -> None:
        """Remember the endpoints that have answered, durably. Does nothing if they are known.

        Args:
            results: further results. They may arrive before the report of the worker that the endpoint has answered.
        """
        if self._rate_limit is None or self._known.issuperset(self._watched):
            return
        new = {digest for digest, settings in self._watched.items() if self._rate_limit.has_answered(settings)}
        if any(result.turns and result.requests for result in results):
            new.add(next(iter(self._watched)))
        if new - self._known:
            self._known |= new
            self._journal.set_meta(_META, json.dumps(sorted(self._known)))


def _digest(settings: ModelSettings) -> str:
    """Return a digest from which the key cannot be found by trying likely ones at little cost."""
    salt = json.dumps([settings.api, settings.base_url, settings.name]).encode()
    return hashlib.scrypt((settings.api_key or "").encode(), salt=salt, n=4096, r=8, p=1, dklen=16).hex()
