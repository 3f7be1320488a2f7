"""Base of the cluster engines: their workers belong to node agents, which another system starts on its nodes."""

from __future__ import annotations

import abc
import logging
import os
import queue
import secrets
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paragent._internal.ids import new_id
from paragent._internal.registry import require_extra
from paragent._internal.threads import start_thread
from paragent._internal.tracebacks import message_of
from paragent._internal.validation import reject_unknown, seconds
from paragent.engines._node_agent import NodeAgentSpec, ParentProcess
from paragent.engines._node_handle import NodeHandle, NodeListener
from paragent.engines._process_pool import ProcessPoolRuntime
from paragent.engines._scheduler import max_held
from paragent.errors import ConfigError, EngineFailed
from paragent.transport.auth import Token
from paragent.worker.output import log_levels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.config import RunConfig
    from paragent.engines._worker_handle import WorkerHandle

__all__ = ["Cluster", "ClusterRuntime", "check_options", "require_reachable"]


def check_options(engine: str, given: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]) -> None:
    """Check the names and types of engine options.

    Raises:
        ConfigError: an option is unknown (the message lists the known options) or has a value of the wrong type.
    """
    reject_unknown(f"the engine {engine!r}", "option", map(str, given), known)
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, known[name]):
            kinds = " or ".join(kind.__name__ for kind in known[name])
            raise ConfigError(
                f"engine_options[{name!r}] (--engine-option {name}=...) must be of the type {kinds}, not {value!r}"
            )


_logger = logging.getLogger("paragent")
_START_TIMEOUT = 120.0
"""Seconds to wait for the first worker if `start_timeout` is not given: twenty times what a local Ray or Spark takes."""
_WARN_AFTER = 20.0
"""Seconds after which the engine warns about workers that have not started: longer than a busy host takes."""
_POLL_INTERVAL = 0.25
"""Seconds between two checks for node agents that have not connected; those that have are noticed by their connection."""
_MAX_FAILED_STARTS = 3
"""Node agents in a row that end before they have connected; then the engine fails."""


class ClusterRuntime(ProcessPoolRuntime):
    """An engine whose workers run on a cluster; a subclass returns the cluster in `open_cluster`.

    Besides the engine's thread there are two: one calls the `Cluster`, one accepts the connections of node agents.

    Raises:
        MissingExtra: the package of the cluster's system is not installed.
        ConfigError: an engine option is unknown, of the wrong type or out of range.
    """

    error_hint = "See the cluster's own logs"
    extra: ClassVar[str] = ""
    """The extra that installs the cluster's client, which is also the engine's name; empty: none, and options are not checked."""
    package: ClassVar[str] = ""
    """The package of that extra that the engine needs."""
    options: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    """The engine options and their types."""

    def __init__(self, config: RunConfig) -> None:
        if self.extra:
            require_extra(f"the engine {self.extra!r}", extra=self.extra, package=self.package)
            check_options(self.extra, config.engine_options, self.options)
        super().__init__(config)
        timeout = config.engine_options.get("start_timeout", _START_TIMEOUT)
        self._start_timeout = seconds(timeout, "engine_options['start_timeout']")
        self.sends_modules = not config.in_local
        self._token = Token(secrets.token_urlsafe(32))
        self._requests: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        self._manager: threading.Thread | None = None
        self._listener: NodeListener | None = None
        self._expected: set[str] = set()
        self._expected_lock = threading.Lock()
        """Protects `_expected`, the names of node agents that were requested and have not connected."""
        self._failed_agents = 0
        self._progress_at = time.monotonic()
        self._warned_of = 0.0
        """The progress after which the last warning about missing workers was logged."""

    @abc.abstractmethod
    def open_cluster(self) -> Cluster:
        """Return the cluster, not started."""

    def expect(self, calls: int) -> None:
        """Do nothing: a cluster is started, or asked for resources, only for calls that were submitted."""

    def start_workers(self, count: int) -> list[WorkerHandle]:
        """Request node agents, which connect by themselves."""
        with self._expected_lock:
            count -= len(self._expected)
            count -= len(self._new_workers)
            if count <= 0:
                return []
            names = [new_id("node") for _ in range(count)]
            self._progress_at = time.monotonic()  # before others see that workers are missing
            self._expected.update(names)
        if self._manager is None:
            self._manager = start_thread(self._manage, name="paragent-cluster", failed=self._thread_failed)
        self._requests.put(names)
        return []

    def close(self) -> None:
        """End the node agents, then the cluster if the engine started it."""
        super().close()
        self._requests.put(None)
        if self._manager is not None:
            self._manager.join()
        while self._new_workers:
            self._new_workers.popleft().close(0.0)

    # --- the cluster's thread -----------------------------------------------------------------------------------------

    def _manage(self) -> None:
        cluster = self.open_cluster()
        try:
            host = cluster.start()
            self._progress_at = time.monotonic()
            self._listener = NodeListener(host, self._token, self.accept_node_agent, self._thread_failed)
            while not self._closing:
                self._manage_once(cluster, host, self._listener.port)
        except EngineFailed as failure:
            self._fail(failure)
        except BaseException as error:  # noqa: BLE001 - without this thread no worker would ever start
            reason = f"{type(self).__name__} cannot start workers ({type(error).__name__}: {message_of(error)})"
            self._fail(EngineFailed(f"{reason}. {self.error_hint}"))
        finally:
            while not self._closing:
                self._requests.get()
            if self._listener:
                self._listener.close()
            cluster.stop()

    def _manage_once(self, cluster: Cluster, host: str, port: int) -> None:
        try:
            names = self._requests.get(timeout=_POLL_INTERVAL)
        except queue.Empty:
            names = None
        if names:
            cluster.launch([self.node_agent_spec(name, host, port) for name in names])
        for name, reason in cluster.ended():
            self._agent_ended(name, reason)
        waiting = len(self._expected)
        if not waiting:
            return
        progress_at = self._progress_at
        waited = time.monotonic() - progress_at
        if not self._workers and waited > self._start_timeout:
            raise EngineFailed(f"no worker has started within {waited:.0f} s: {cluster.shortage()}")
        if waited > _WARN_AFTER and self._warned_of != progress_at:  # once, and again if a node is lost later
            self._warned_of = progress_at
            _logger.warning("%d of %d workers have not started: %s", waiting, self.config.workers, cluster.shortage())

    def _agent_ended(self, name: str, reason: str) -> None:
        with self._expected_lock:
            if name not in self._expected:
                return  # it had connected; its handle reports the rest
            self._expected.discard(name)
        self._failed_agents += 1
        if self._failed_agents >= _MAX_FAILED_STARTS and not self._workers:
            raise EngineFailed(f"workers end before they are ready, the last one: {reason}. {self.error_hint}")
        self._wake()

    def node_agent_spec(self, name: str, host: str, port: int) -> NodeAgentSpec:
        """Return the settings of a node agent that connects to this engine at `host` and `port`."""
        limits = self.limits
        parent = ParentProcess(tuple(sys.path), str(Path.cwd()), dict(os.environ)) if self.config.in_local else None
        return NodeAgentSpec(
            name=name,
            host=host,
            port=port,
            token=self._token,
            sync_limit=limits.sync,
            async_limit=limits.asynchronous,
            shared_limit=limits.shared,
            slots=max_held(limits.sync) + max_held(limits.asynchronous),
            log_levels=log_levels(),
            python=sys.version_info[:2],
            parent=parent,
        )

    # --- the listener's threads ---------------------------------------------------------------------------------------

    def accept_node_agent(self, name: str, connection: socket.socket) -> bool:
        """Add the worker of a node agent that was requested; reject any other: the cluster started it a second time."""
        with self._expected_lock:
            if name not in self._expected or self._closing:
                return False
            self.add_worker(NodeHandle(name, connection))
            self._expected.discard(name)
        self._failed_agents = 0
        self._progress_at = time.monotonic()
        return True


class Cluster(abc.ABC):
    """A system that starts node agents on its nodes. The constructor does nothing; one thread calls all methods."""

    @abc.abstractmethod
    def start(self) -> str:
        """Connect to the system, or start it on this host; return the address by which its nodes reach this host.

        Raises:
            EngineFailed: the system is not available; the message says what to do.
        """

    @abc.abstractmethod
    def launch(self, specs: Sequence[NodeAgentSpec]) -> None:
        """Start a node agent for each spec; returns at once."""

    @abc.abstractmethod
    def ended(self) -> list[tuple[str, str]]:
        """Return the names of the node agents that ended since the last call, each with the reason; does not wait."""

    @abc.abstractmethod
    def shortage(self) -> str:
        """Return why node agents may be waiting for resources, and what to do."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End every node agent, disconnect, and stop what `start` started; also after a `start` that failed."""


_CONNECT_TIMEOUT = 3.0
"""Seconds that a connection may take; it takes one round trip if the port is open."""


def require_reachable(address: str, default_port: int, what: str) -> tuple[str, int]:
    """Connect to `host[:port]` once; return the host and the port.

    Raises:
        EngineFailed: the connection fails.
    """
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    target = (host.strip("[]") or "127.0.0.1", int(port) if port.isdigit() else default_port)
    try:
        socket.create_connection(target, timeout=_CONNECT_TIMEOUT).close()
    except OSError as error:
        raise EngineFailed(
            f"{what} at {target[0]}:{target[1]} does not answer: {error}. Check the address, that the cluster runs, and "
            "firewalls; or start one on this host, with in_local=True or without --engine-address"
        ) from error
    return target
