"""An engine whose workers are at stations that a cluster starts."""

from __future__ import annotations

import abc
import difflib
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
from paragent._internal.validation import seconds
from paragent.engines._listener import Reception
from paragent.engines._node_handle import StationMember
from paragent.engines._node_protocol import Posting, Surroundings
from paragent.engines._process_pool import PooledRuntime
from paragent.engines._scheduler import Pace
from paragent.errors import ConfigError, EngineFailed
from paragent.transport.auth import Token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.config import RunConfig
    from paragent.engines._process_pool import Member

__all__ = ["Cluster", "ClusterRuntime", "check_options", "local_address_towards", "require_reachable"]


def check_options(engine: str, given: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]) -> None:
    """Refuse options that the engine does not have, or of the wrong type.

    Raises:
        ConfigError: an option is unknown (the message lists the known ones) or has a value of the wrong type.
    """
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), list(known), n=1)
            hint = f", did you mean {close[0]!r}?" if close else "."
            listed = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"the engine {engine!r} has no option {name!r}{hint} Its engine_options are: {listed}")
        if isinstance(value, bool) or not isinstance(value, known[name]):
            kinds = " or ".join(kind.__name__ for kind in known[name])
            raise ConfigError(f"engine_options[{name!r}] must be a {kinds}, not {value!r}")


_logger = logging.getLogger("paragent")
START_TIMEOUT = 120.0
"""Seconds to wait for the first worker where `start_timeout` is not given: twenty times what a local Ray or Spark takes."""
_SHORTAGE_AFTER = 20.0
"""Seconds after which workers that have no place yet are worth a warning: longer than a busy machine takes to start them."""
_LOOK = 0.25
"""Seconds between two looks at which stations are over; joined ones are noticed at once, by their connection."""
_FAILED_STARTS = 3
"""Stations in a row that end before they have reported: then there is no point in starting more."""


class ClusterRuntime(PooledRuntime):
    """Everything of a cluster engine but the cluster: a subclass names it in `open_cluster`.

    Two threads besides the pool's: one talks to the cluster, one receives the stations that report.

    Raises:
        MissingExtra: the package of the cluster's system is not installed.
        ConfigError: an engine option is unknown or of the wrong type.
    """

    where_errors_are = "Look into the cluster's own logs"
    extra: ClassVar[str] = ""
    """The extra that brings the system, which is also the engine's name; empty: it needs none, and any option is passed on."""
    package: ClassVar[str] = ""
    """The package of that extra without which the engine cannot work."""
    options: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    """The engine options and their types."""

    def __init__(self, config: RunConfig) -> None:
        if self.extra:
            require_extra(f"the engine {self.extra!r}", extra=self.extra, package=self.package)
            check_options(self.extra, config.engine_options, self.options)
        super().__init__(config)
        self.carries_modules = not config.in_local
        self._token = Token(secrets.token_urlsafe(32))
        self._orders: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        self._manager: threading.Thread | None = None
        self._reception: Reception | None = None
        self._expected: set[str] = set()
        self._roster = threading.Lock()
        """Protects `_expected`, the stations that were ordered and have not reported."""
        self._failed_stations = 0
        self._progress_at = time.monotonic()
        self._warned = False

    @abc.abstractmethod
    def open_cluster(self) -> Cluster:
        """Return the cluster to use, not started."""

    def expect(self, calls: int) -> None:
        """Nothing: a cluster is started, or asked for places, for calls that were checked and are there."""

    def recruit(self, missing: int) -> list[Member]:
        """Order stations; they come by themselves."""
        with self._roster:
            missing -= len(self._expected)
            missing -= len(self._arrivals)
            if missing <= 0:
                return []
            names = [new_id("station") for _ in range(missing)]
            self._expected.update(names)
        self._progress_at = time.monotonic()
        if self._manager is None:
            self._manager = start_thread(self._manage, name="paragent-cluster", failed=self._thread_failed)
        self._orders.put(names)
        return []

    def close(self) -> None:
        """End the stations, then what the cluster's side of the engine started."""
        super().close()
        self._orders.put(None)
        if self._manager is not None:
            self._manager.join()
        while self._arrivals:
            self._arrivals.popleft().release(0.0)

    # --- the cluster's thread -----------------------------------------------------------------------------------------

    def _manage(self) -> None:
        cluster = self.open_cluster()
        try:
            host = cluster.start()
            self._progress_at = time.monotonic()
            self._reception = Reception(host, self._token, self._welcome, self._thread_failed)
            while not self._closing:
                self._look_after(cluster, host, self._reception.port)
        except EngineFailed as failure:
            self._fail(failure)
        except BaseException as error:  # noqa: BLE001 - without this thread no worker would ever come
            name = type(self).__name__
            self._fail(EngineFailed(f"{name} cannot start workers ({type(error).__name__}: {message_of(error)})"))
        finally:
            while not self._closing:
                self._orders.get()
            if self._reception:
                self._reception.close()
            cluster.stop()

    def _look_after(self, cluster: Cluster, host: str, port: int) -> None:
        try:
            names = self._orders.get(timeout=_LOOK)
        except queue.Empty:
            names = None
        if names:
            cluster.launch([self._posting(name, host, port) for name in names])
        for name, reason in cluster.ended():
            self._station_ended(name, reason)
        waiting = len(self._expected)
        if not waiting:
            return
        waited = time.monotonic() - self._progress_at
        if not self._crew and waited > self._start_timeout:
            raise EngineFailed(f"no worker has started within {waited:.0f} s: {cluster.shortage()}")
        if waited > _SHORTAGE_AFTER and not self._warned:
            self._warned = True
            _logger.warning("%d of %d workers have no place yet: %s", waiting, self.config.workers, cluster.shortage())

    @property
    def _start_timeout(self) -> float:
        return seconds(
            self.config.engine_options.get("start_timeout", START_TIMEOUT), "engine_options['start_timeout']"
        )

    def _station_ended(self, name: str, reason: str) -> None:
        with self._roster:
            if name not in self._expected:
                return  # it had reported; its connection tells the rest
            self._expected.discard(name)
        self._failed_stations += 1
        if self._failed_stations >= _FAILED_STARTS and not self._crew:
            raise EngineFailed(f"workers end before they are ready, the last one: {reason}. {self.where_errors_are}")
        self._wake()

    def _posting(self, name: str, host: str, port: int) -> Posting:
        limits = self.limits
        near = self.config.in_local
        return Posting(
            name=name,
            host=host,
            port=port,
            token=self._token,
            sync_limit=limits.sync,
            async_limit=limits.asynchronous,
            shared_limit=limits.shared,
            slots=Pace.most(limits.sync) + Pace.most(limits.asynchronous),
            log_level=logging.getLogger().getEffectiveLevel(),
            python=sys.version_info[:2],
            surroundings=Surroundings(tuple(sys.path), str(Path.cwd()), dict(os.environ)) if near else None,
        )

    # --- the reception's threads --------------------------------------------------------------------------------------

    def _welcome(self, name: str, connection: socket.socket) -> bool:
        """Take in a station that was ordered; any other is one that the cluster started a second time."""
        with self._roster:
            if name not in self._expected or self._closing:
                return False
            self.enlist(StationMember(name, connection))
            self._expected.discard(name)
        self._failed_stations = 0
        self._progress_at = time.monotonic()
        return True


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


_REACH = 3.0
"""Seconds that a connection may take; a port that answers at all does so within one round trip."""


def require_reachable(address: str, default_port: int, what: str) -> tuple[str, int]:
    """Connect to `host[:port]` once; return the host and the port.

    Raises:
        EngineFailed: nobody answers there.
    """
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    target = (host.strip("[]") or "127.0.0.1", int(port) if port.isdigit() else default_port)
    try:
        socket.create_connection(target, timeout=_REACH).close()
    except OSError as error:
        raise EngineFailed(
            f"{what} at {target[0]}:{target[1]} does not answer: {error}. Check the address, that the cluster runs, and the "
            "firewall between; or use in_local=True to start one on this machine"
        ) from error
    return target


def local_address_towards(target: tuple[str, int]) -> str:
    """Return the address of this machine from which `target` is reached."""
    family, kind, _, _, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram socket: sends nothing
        return str(probe.getsockname()[0])
