"""The Ray engine: node agents run in Ray actors."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from paragent._internal.networks import local_address_towards
from paragent.config import usable_cores
from paragent.engines._cluster import Cluster, ClusterRuntime, require_reachable
from paragent.engines._node_agent import run_node_agent
from paragent.errors import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.config import RunConfig
    from paragent.engines._node_agent import NodeAgentSpec

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
"""Seconds for Ray's processes to find each other when it starts on this host. Ray's default, 30, is too short on a busy
host."""
_MAX_STARTS = 2
"""How often the engine tries to start Ray on this host."""
_LOGS = "See Ray's logs, /tmp/ray/session_latest/logs on the node"
_RESOURCES = ("num_cpus", "num_gpus", "memory", "resources")
_ACTOR_OPTIONS = (*_RESOURCES, "runtime_env")


class NodeAgentActor:
    """The Ray actor: it runs a node agent until that ends."""

    def run(self, spec: NodeAgentSpec) -> str:
        """Return how the node agent ended."""
        return run_node_agent(spec)


class RayCluster(Cluster):
    """The Ray that this process is already connected to, or one to which an engine connects, or which it starts."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._options = dict(config.engine_options)
        self._ours = False
        self._agents: dict[Any, tuple[str, Any]] = {}
        """The name and the actor of each node agent, by the object reference of its result."""

    def start(self) -> str:
        """Use the existing connection; otherwise start Ray on this host, or connect to the configured cluster."""
        os.environ.setdefault("RAY_raylet_start_wait_time_s", str(_START_LIMIT))  # read when Ray is first imported
        import ray

        host = None
        if not ray.is_initialized():
            self._require_local_address()
            self._ours = True
            logging.getLogger("ray").setLevel(logging.ERROR)  # no messages about its start on the user's terminal
            if self._config.in_local:
                self._start_locally()
                host = "127.0.0.1"
            else:
                host = self._connect()
        return str(self._options.get("driver_host") or host or ray.util.get_node_ip_address())

    def launch(self, specs: Sequence[NodeAgentSpec]) -> None:
        """Start an actor for each spec."""
        import ray

        options = self._actor_options()
        actor_class = ray.remote(NodeAgentActor)
        for spec in specs:
            actor = actor_class.options(name=f"{self._config.job_name}:{spec.name}", **options).remote()
            self._agents[actor.run.remote(spec)] = (spec.name, actor)

    def ended(self) -> list[tuple[str, str]]:
        """Ask Ray which actors have ended or died."""
        if not self._agents:
            return []
        import ray

        done, _ = ray.wait(list(self._agents), num_returns=len(self._agents), timeout=0)
        ended = []
        for reference in done:
            name, actor = self._agents.pop(reference)
            try:
                reason = str(ray.get(reference))
            except ray.exceptions.ActorUnschedulableError:
                reason = f"Ray has no resources for it: {self.shortage()}"
            except Exception as error:  # noqa: BLE001 - whatever the error is, the node agent has ended
                reason = _first_lines(error)
            with suppress(Exception):
                ray.kill(actor)
            ended.append((name, reason))
        return ended

    def shortage(self) -> str:
        """Compare the resources that the actors request with those of the cluster."""
        import ray

        total = {kind: amount for kind, amount in ray.cluster_resources().items() if ":" not in kind}
        free = {kind: amount for kind, amount in ray.available_resources().items() if ":" not in kind}
        requested = {kind: value for kind, value in self._actor_options().items() if kind in _RESOURCES and value}
        if not requested:
            return (
                "they request no resources, so Ray has room for them and is still starting their processes. A host whose "
                "cores are busy, or a large runtime_env, takes long. Ray's log files are in /tmp/ray/session_latest/logs"
            )
        return (
            f"each worker requests {requested} from Ray; the cluster has {total}, of which {free} is free. "
            "Lower worker_num, or the requests in engine_options (num_cpus, num_gpus, memory, resources)"
        )

    def stop(self) -> None:
        """Kill the actors, and disconnect from Ray or stop it if this engine connected or started it."""
        import ray

        if not ray.is_initialized():
            return
        for _, actor in self._agents.values():
            with suppress(Exception):  # it may be dead already
                ray.kill(actor)
        self._agents.clear()
        if self._ours:
            ray.shutdown()

    # --- starting and connecting --------------------------------------------------------------------------------------

    def _require_local_address(self) -> None:
        address = self._options.get("address", "local")
        if self._config.in_local and address != "local":
            raise EngineFailed(f"the address {address!r} is a cluster; add in_local=False (--engine-address) to use it")

    def _start_locally(self) -> None:
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings = {
            "address": "local",  # otherwise RAY_ADDRESS would select a cluster
            "num_cpus": max(usable_cores(), self._config.workers),
            "num_gpus": None,
            "resources": self._local_resources(),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            **self._connection_options(),
        }
        for tries_left in reversed(range(_MAX_STARTS)):
            try:
                ray.init(**settings)
            except Exception as error:
                ray.shutdown()  # the part that had started
                if not tries_left:
                    raise EngineFailed(f"Ray does not start on this host: {_first_lines(error)}. {_LOGS}") from error
            else:
                return

    def _local_resources(self) -> dict[str, float]:
        """Return the custom resources to declare for a Ray on this host: as many as the workers request."""
        return {kind: amount * self._config.workers for kind, amount in self._options.get("resources", {}).items()}

    def _connect(self) -> str | None:
        import ray

        address = str(self._options.get("address") or os.environ.get("RAY_ADDRESS") or "auto")
        if address == "local":
            raise EngineFailed(
                "in_local=False needs a cluster, but the address 'local' would start one; use in_local=True"
            )
        host = None
        if address != "auto":
            scheme, _, rest = address.rpartition("://")
            target = require_reachable(rest, 10001 if scheme == "ray" else 6379, "the Ray cluster")
            host = local_address_towards(target) if scheme == "ray" else None
        try:
            ray.init(address=address, **self._connection_options())
        except Exception as error:
            if _is_rejected_token(error):
                raise EngineFailed(
                    f"the Ray cluster at {address!r} requires a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what "
                    "`ray get-auth-token` prints on the head node"
                ) from error
            if not isinstance(error, ConnectionError):
                raise
            raise EngineFailed(
                f"there is no Ray cluster at {address!r}: {_first_lines(error)}. Name one with "
                "engine_options={'address': 'host:6379'} (--engine-address) or RAY_ADDRESS, start one with 'ray start --head', "
                "or use in_local=True"
            ) from error
        return host

    def _connection_options(self) -> dict[str, Any]:
        return {
            "namespace": self._options.get("namespace"),
            "log_to_driver": False,  # prints of tasks arrive on the engine's own connections
            "logging_level": logging.ERROR,
            "configure_logging": False,
        }

    def _actor_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {kind: self._options[kind] for kind in _ACTOR_OPTIONS if kind in self._options}
        options.setdefault("num_cpus", 0 if self._config.in_local else self._share_of_cpus())
        options |= {"max_restarts": 0, "max_task_retries": 0}
        if self._config.in_local:
            options["scheduling_strategy"] = self._this_node()
        else:
            options["scheduling_strategy"] = "SPREAD"
        return options

    def _share_of_cpus(self) -> float:
        """Return one CPU for each worker, or an equal fraction of a CPU if there are more workers than CPUs."""
        import ray

        cores = ray.cluster_resources().get("CPU", 0.0)
        per_core = -(-self._config.workers // max(1, int(cores)))
        return 1.0 if per_core <= 1 else round(1.0 / per_core - 5e-5, 4)  # Ray counts in steps of 1/10,000

    @staticmethod
    def _this_node() -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _is_rejected_token(error: BaseException | None) -> bool:
    """Return whether Ray's token authentication is the cause of an error; Ray hides it in the causes of others."""
    while error is not None and "Authentication" not in f"{type(error).__name__} {error}":
        error = error.__cause__
    return error is not None


def _first_lines(error: BaseException) -> str:
    """Return the first lines of an error's message; Ray's messages are very long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:6])}"[:800]


class RayRuntime(ClusterRuntime):
    """Runs every call in one of a fixed number of workers that Ray places; docs/guide/engines.md lists its options.

    Ray only starts the node agents. Calls and answers use the engine's own connections, and Ray restarts neither actors nor
    tasks, so no call is repeated without the runner's decision.
    """

    error_hint = _LOGS
    extra, package, options = "ray", "ray", OPTIONS

    def open_cluster(self) -> Cluster:
        """Return the Ray cluster of the configuration."""
        return RayCluster(self.config)
