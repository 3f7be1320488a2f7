"""A cluster engine whose node agents run in threads of this process, so that it starts at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from paragent.engines import Cluster, ClusterRuntime, run_node_agents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.engines import NodeAgentSpec


class ThreadCluster(Cluster):
    """Runs each node agent in a thread of this process."""

    def start(self) -> str:
        self._threads: list[threading.Thread] = []
        self._ended: list[tuple[str, str]] = []
        return "127.0.0.1"

    def launch(self, specs: Sequence[NodeAgentSpec]) -> None:
        for spec in specs:
            thread = threading.Thread(target=self._run, args=(spec,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self, spec: NodeAgentSpec) -> None:
        self._ended.extend(run_node_agents([spec]).items())

    def ended(self) -> list[tuple[str, str]]:
        ended, self._ended = self._ended, []
        return ended

    def shortage(self) -> str:
        return "there is no shortage of threads"

    def stop(self) -> None:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a node agent outlived its engine"


class ThreadRuntime(ClusterRuntime):
    """The engine of `ThreadCluster`."""

    def open_cluster(self) -> Cluster:
        return ThreadCluster()
