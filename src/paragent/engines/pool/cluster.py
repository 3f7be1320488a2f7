"""The contract of clusters: start stations somewhere, and tell which of them are over."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.engines.station.orders import Posting

__all__ = ["Cluster"]


class Cluster(abc.ABC):
    """Another system's machines. Constructing one does nothing; all methods are called by one thread, which outlives it."""

    @abc.abstractmethod
    def start(self) -> str:
        """Connect to the system, or start it on this machine; return the address of this machine that it can reach.

        Raises:
            EngineFailed: it is not there, and what to do about it.
        """

    @abc.abstractmethod
    def launch(self, postings: Sequence[Posting]) -> None:
        """Have a station started for each posting; returns at once."""

    @abc.abstractmethod
    def ended(self) -> list[tuple[str, str]]:
        """Return the names of stations that are over since the last call, each with the reason; does not wait."""

    @abc.abstractmethod
    def shortage(self) -> str:
        """Say why stations may be waiting for a place, and what to do about it."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End every station, disconnect, and stop what `start` started; also after a `start` that failed."""
