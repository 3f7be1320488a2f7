"""Stations in threads of this process: a cluster engine that starts in a moment."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from paragent.engines import _node_agent as hosting
from paragent.engines._cluster import Cluster, ClusterRuntime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.engines._node_protocol import Posting


class ThreadCluster(Cluster):
    """Stations in threads of this process: everything of a cluster engine but the cluster."""

    def start(self) -> str:
        self._threads: list[threading.Thread] = []
        self._ended: list[tuple[str, str]] = []
        return "127.0.0.1"

    def launch(self, postings: Sequence[Posting]) -> None:
        for posting in postings:
            thread = threading.Thread(target=self._serve, args=(posting,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, posting: Posting) -> None:
        self._ended.extend(hosting.host([posting]).items())

    def ended(self) -> list[tuple[str, str]]:
        ended, self._ended = self._ended, []
        return ended

    def shortage(self) -> str:
        return "there is no shortage of threads"

    def stop(self) -> None:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a station outlived its engine"


class ThreadRuntime(ClusterRuntime):
    """The engine of `ThreadCluster`."""

    def open_cluster(self) -> Cluster:
        return ThreadCluster()
