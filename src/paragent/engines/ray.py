"""Ray as a place for stations: connecting, starting, actors."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from paragent.config import usable_cores
from paragent.engines._cluster import Cluster, ClusterRuntime, local_address_towards, require_reachable
from paragent.engines._node_agent import serve
from paragent.errors import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.config import RunConfig
    from paragent.engines._node_protocol import Posting

__all__ = ["OPTIONS", "RayCluster", "RayRuntime"]


OPTIONS: dict[str, tuple[type, ...]] = {
    "address": (str,),
    "driver_host": (str,),
    "namespace": (str,),
    "num_cpus": (int, float),
    "num_gpus": (int, float),
    "memory": (int, float),
    "resources": (dict,),
    "runtime_env": (dict,),
    "start_timeout": (int, float),
}
"""The engine options and their types."""
_START_LIMIT = 120
"""Seconds for Ray's processes to find each other when it is started here; Ray gives up after 30, which is short where much
else runs."""
_STARTS = 2
"""How often Ray is started here before it counts as impossible."""
_PER_WORKER = ("num_cpus", "num_gpus", "memory", "resources", "runtime_env")


class StationActor:
    """What Ray runs: an actor that does nothing but serve at its station until that ends."""

    def serve(self, posting: Posting) -> str:
        """Return how the station ended."""
        return serve(posting)


class RayCluster(Cluster):
    """The Ray that this process is connected to already, or one that is connected to, or started, for one engine."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._options = dict(config.engine_options)
        self._ours = False
        self._stations: dict[Any, tuple[str, Any]] = {}
        """The promise of each station's end, with its name and its actor."""

    def start(self) -> str:
        """Use the connection that is there; else start Ray here, or connect to the cluster that was named."""
        os.environ.setdefault("RAY_raylet_start_wait_time_s", str(_START_LIMIT))  # read when Ray is first imported
        import ray

        host = None
        if not ray.is_initialized():
            self._ours = True
            logging.getLogger("ray").setLevel(
                logging.ERROR
            )  # its remarks on its own start are not for the user's terminal
            if self._config.in_local:
                self._start_here()
                host = "127.0.0.1"
            else:
                host = self._connect()
        return str(self._options.get("driver_host") or host or ray.util.get_node_ip_address())

    def launch(self, postings: Sequence[Posting]) -> None:
        """Start an actor for each."""
        import ray

        options = self._actor_options()
        station = ray.remote(StationActor)
        for posting in postings:
            actor = station.options(name=f"{self._config.job_name}:{posting.name}", **options).remote()
            self._stations[actor.serve.remote(posting)] = (posting.name, actor)

    def ended(self) -> list[tuple[str, str]]:
        """Ask Ray which actors are done or dead."""
        if not self._stations:
            return []
        import ray

        over, _ = ray.wait(list(self._stations), num_returns=len(self._stations), timeout=0)
        ended = []
        for promise in over:
            name, actor = self._stations.pop(promise)
            try:
                reason = str(ray.get(promise))
            except ray.exceptions.ActorUnschedulableError:
                reason = f"Ray has no place for it: {self.shortage()}"
            except Exception as error:  # noqa: BLE001 - however an actor failed, the station is over
                reason = _first_lines(error)
            with suppress(Exception):
                ray.kill(actor)
            ended.append((name, reason))
        return ended

    def shortage(self) -> str:
        """Compare what the actors ask for with what there is."""
        import ray

        there = {kind: amount for kind, amount in ray.cluster_resources().items() if ":" not in kind}
        free = {kind: amount for kind, amount in ray.available_resources().items() if ":" not in kind}
        asked = {kind: value for kind, value in self._actor_options().items() if kind in _PER_WORKER and value}
        return (
            f"each asks Ray for {asked}; the cluster has {there}, of which {free} is free. "
            "Lower worker_num, or what each worker asks for in engine_options (num_cpus, num_gpus, memory, resources)"
        )

    def stop(self) -> None:
        """Kill the actors, and leave or end Ray if this engine connected or started it."""
        import ray

        if not ray.is_initialized():
            return
        for _, actor in self._stations.values():
            with suppress(Exception):  # it may be dead already
                ray.kill(actor)
        self._stations.clear()
        if self._ours:
            ray.shutdown()

    # --- starting and connecting --------------------------------------------------------------------------------------

    def _start_here(self) -> None:
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings = {
            "address": "local",  # or RAY_ADDRESS would make this a connection to a cluster
            "num_cpus": max(usable_cores(), self._config.workers),
            "num_gpus": None,
            "resources": self._local_resources(),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            **self._connection_options(),
        }
        for tries_left in reversed(range(_STARTS)):
            try:
                ray.init(**settings)
            except Exception as error:
                ray.shutdown()  # what had started already
                if not tries_left:
                    raise EngineFailed(f"Ray does not start on this machine: {_first_lines(error)}") from error
            else:
                return

    def _local_resources(self) -> dict[str, float]:
        """Custom resources exist only where somebody declares them: here, as many as the workers ask for."""
        return {kind: amount * self._config.workers for kind, amount in self._options.get("resources", {}).items()}

    def _connect(self) -> str | None:
        import ray

        address = str(self._options.get("address") or os.environ.get("RAY_ADDRESS") or "auto")
        if address == "local":
            raise EngineFailed(
                "in_local=False needs a cluster, and the address 'local' would start one; use in_local=True"
            )
        host = None
        if address != "auto":
            scheme, _, rest = address.rpartition("://")
            target = require_reachable(rest, 10001 if scheme == "ray" else 6379, "the Ray cluster")
            host = local_address_towards(target) if scheme == "ray" else None
        try:
            ray.init(address=address, **self._connection_options())
        except ConnectionError as error:
            raise EngineFailed(
                f"there is no Ray cluster at {address!r}: {_first_lines(error)}. Name one with "
                "engine_options={'address': 'host:6379'} or RAY_ADDRESS, start one with 'ray start --head', or use in_local=True"
            ) from error
        return host

    def _connection_options(self) -> dict[str, Any]:
        return {
            "namespace": self._options.get("namespace"),
            "log_to_driver": False,  # what tasks print comes on the engine's own connections
            "logging_level": logging.ERROR,
            "configure_logging": False,
        }

    def _actor_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {kind: self._options[kind] for kind in _PER_WORKER if kind in self._options}
        options.setdefault("num_cpus", 0 if self._config.in_local else self._share_of_cpus())
        options |= {"max_restarts": 0, "max_task_retries": 0}
        if self._config.in_local:
            options["scheduling_strategy"] = self._this_node()
        else:
            options["scheduling_strategy"] = "SPREAD"
        return options

    def _share_of_cpus(self) -> float:
        """One core for each worker, or the part of one with which all of them fit."""
        import ray

        cores = ray.cluster_resources().get("CPU", 0.0)
        crowd = -(-self._config.workers // max(1, int(cores)))
        return 1.0 if crowd <= 1 else round(1.0 / crowd - 5e-5, 4)  # Ray counts in steps of 1/10,000

    @staticmethod
    def _this_node() -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _first_lines(error: BaseException) -> str:
    """Return the start of an error's message: Ray's tell the whole story of the cluster."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:6])}"[:800]


class RayRuntime(ClusterRuntime):
    """Runs every attempt in one of a fixed number of workers that Ray places; docs/engines.md lists its options.

    Ray starts the workers and nothing else: calls and answers travel on connections of their own, and neither an actor
    nor a task is ever started again by Ray, so no attempt is repeated behind the driver's back.
    """

    where_errors_are = "Look into Ray's logs, /tmp/ray/session_latest/logs on the node"
    extra, package, options = "ray", "ray", OPTIONS

    def open_cluster(self) -> Cluster:
        """Ray as the configuration says."""
        return RayCluster(self.config)
