"""Agent server launcher: runs an agent server in this process or in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.signals import signals_handled
from paragent._internal.threads import start_thread, write_traceback
from paragent._internal.validation import flag, instance_of, optional, seconds
from paragent.errors import ConfigError, ServerLost, UsageError
from paragent.remote.placement import RECONNECT_TIMEOUT, limit_process, parse_trusted, unlimit_process
from paragent.transport.address import Address, TlsConf
from paragent.transport.auth import load_token
from paragent.transport.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from paragent.remote.server.dispatcher import MessageDispatcher
    from paragent.transport.server import RpcServer

__all__ = ["RpcAgentServerLauncher"]

_START = 10.0
_STOP = 2.0
"""Seconds to open and to close the listener; both need a few milliseconds."""
_LEASE = 10.0
"""Seconds after which the agents of a disconnected client are freed. A client that can reach the server reconnects within one
second; ten allow for a host that stalls."""


def _reject_restricted(name: str, *, given: bool) -> None:
    """Raise `ConfigError` if a setting without effect was given to a server that accepts code."""
    if given:
        raise ConfigError(
            f"{name} (paragent agent-server: --{name.removesuffix('s').replace('_', '-')}) is for restricted servers, and this "
            "server accepts code, so the setting has no effect; leave it out, or name custom_agent_classes (--module) and accept "
            "no code"
        )


class RpcAgentServerLauncher:
    """An agent server at one address.

    By default it listens on the loopback interface. Clients must know the user's token. With `custom_agent_classes` it is a
    restricted server: it runs only agents of these classes and accepts no code from clients, unless `accept_code` is True. As a
    context manager it serves in this process and shuts down at the end.

    Args:
        host: host name or address to listen at; `0.0.0.0` for all interfaces (use TLS then).
        port: port to listen at; 0 lets the system choose one, which `launcher.port` then returns.
        custom_agent_classes: classes of which clients may create agents.
        accept_code: whether clients may send their own classes; None: only without `custom_agent_classes`.
        tls: certificate and key; with `ca` clients need a certificate too.
        peer_tls: how to connect to other servers that use TLS, to fetch results that clients pass on; None: as `tls`.
        trusted_servers: for a restricted server: other servers, as `host:port`, on which its agents may create agents, and whose
            agents they may call if clients pass their proxies. Trust them as much as the code of this server: their results are
            unpickled.
        accept_state: for a restricted server: whether `agent.to_dist(host=, port=)` may move an agent there without running its
            constructor. None: if all its attributes are public; True: with any state; False: never.
        limits: limits of what the server accepts.
        lease: seconds after which the agents of a disconnected client are freed.
        reconnect_timeout: for a restricted server: seconds for which its agents try to reconnect to a server that does not
            answer, when they call agents whose proxies clients passed to them. On other servers such a proxy keeps the client's
            limit.

    Raises:
        ConfigError: (also by `launch`) a setting is out of range, a PEM file cannot be used, or the server cannot listen at the
            address.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int | str = 0,
        custom_agent_classes: Sequence[type] = (),
        *,
        accept_code: bool | None = None,
        tls: TlsConf | None = None,
        peer_tls: TlsConf | None = None,
        trusted_servers: Sequence[str] = (),
        accept_state: bool | None = None,
        limits: Limits | None = None,
        lease: float = _LEASE,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
    ) -> None:
        self.address = Address.of(host, port)
        """Where the server listens."""
        if isinstance(custom_agent_classes, type | str):
            raise ConfigError(f"custom_agent_classes must be a list of classes, not {custom_agent_classes!r}")
        self._classes = tuple(custom_agent_classes)
        if wrong := [
            cls for cls in self._classes if not (isinstance(cls, type) and hasattr(type(cls), "construct_here"))
        ]:
            raise ConfigError(f"custom_agent_classes must be subclasses of AgentBase, not {wrong[0]!r}")
        optional(instance_of(TlsConf, "TlsConf(cert='server.pem', key='server.key')"))(tls, "tls")
        optional(instance_of(TlsConf, "TlsConf(ca='ca.pem')"))(peer_tls, "peer_tls")
        optional(flag)(accept_code, "accept_code")
        optional(flag)(accept_state, "accept_state")
        optional(instance_of(Limits, "Limits(threads=100)"))(limits, "limits")
        lease = seconds(lease, "lease")
        self._reconnect_timeout = seconds(reconnect_timeout, "reconnect_timeout")
        self._accept_code = not self._classes if accept_code is None else accept_code
        self._peer_tls = peer_tls or tls
        self._trusted_servers, self._trusted = tuple(trusted_servers), parse_trusted(trusted_servers)
        if self._accept_code:
            _reject_restricted("trusted_servers", given=bool(self._trusted))
            _reject_restricted("reconnect_timeout", given=self._reconnect_timeout != RECONNECT_TIMEOUT)
        self._accept_state = accept_state
        self._tls, self._limits, self._lease = tls, limits or Limits(), lease
        self._server: tuple[MessageDispatcher, RpcServer] | None = None
        """The server in this process."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._signalled = False
        """Set by a signal handler. It must not set `_ended`, whose lock the interrupted code may hold."""
        self._limits_process = False
        """Whether all code of this process is limited to `trusted_servers`."""
        self._failure = ""
        """Why the server ended after an error; empty otherwise."""

    @property
    def host(self) -> str:
        """Host that the server listens at."""
        return self.address.host

    @property
    def port(self) -> int:
        """Port that the server listens at; not 0 after `launch`."""
        return self.address.port

    def __repr__(self) -> str:
        if self._server is not None:
            state = "serves in this process"
        elif self._process is not None:
            state = f"serves in process {self._process.pid}"
        else:
            state = "stopped" if self._ended.is_set() else "not launched"
        return f"<{type(self).__name__} {self.host}:{self.port}: {state}>"

    def launch(self, in_subprocess: bool = True) -> None:
        """Start the server, and return when clients can connect.

        Args:
            in_subprocess: serve in a new process, which ends with this one; otherwise in threads of this process.

        Raises:
            ConfigError: the server cannot listen at the address.
            ServerLost: the new process did not start.
            UsageError: it was launched before and has not ended.
        """
        if self._server is not None or self._process is not None:
            raise UsageError(f"{self!r} has been launched; call shutdown() before launching it again")
        self._ended.clear()
        self._signalled = False
        self._failure = ""
        if in_subprocess:
            self._launch_process()
        else:
            self._launch_here()

    def wait_until_terminate(self) -> None:
        """Print where the server listens, and wait until it ends: by `shutdown`, `paragent agent-server stop`, SIGTERM or Ctrl-C.

        Raises:
            ServerLost: the server ended because one of its threads failed.
            UsageError: it was not launched.
        """
        if self._server is not None or self._process is not None:
            offered = ", ".join(sorted(cls.__name__ for cls in self._classes)) or "all classes that clients send"
            if self._classes and self._accept_code:
                offered += " and all classes that clients send"
            # A program that only serves would otherwise be silent, and its user would not know whether it is ready.
            sys.stdout.write(
                f"agent server at {self.address}: accepts {offered}; clients need the token; Ctrl-C stops it\n"
            )
            sys.stdout.flush()
        self.wait_until_end()

    def wait_until_end(self) -> None:
        """Wait as `wait_until_terminate` does, without printing.

        Raises:
            ServerLost: the server ended because one of its threads failed.
            UsageError: it was not launched.
        """
        if self._server is None and self._process is None and not self._ended.is_set():
            raise UsageError("the launcher waits for a server that runs; call launch() first")
        if self._server is not None and not self._accept_code and not self._limits_process:
            limit_process(self._trusted)  # from now on this process only serves
            self._limits_process = True
        if threading.current_thread() is threading.main_thread():
            with self.stopping_at_signals():
                self._wait()
        else:
            self._wait()
        self.shutdown()
        if self._failure:
            raise ServerLost(self._failure)

    def shutdown(self) -> None:
        """Stop the server; waiting callers get `ServerLost`. A second call does nothing."""
        from paragent.transport.loop import run

        if self._limits_process:
            self._limits_process = False
            unlimit_process(self._trusted)
        server, self._server = self._server, None
        if server is not None:
            dispatcher, listener = server
            with contextlib.suppress(TimeoutError):
                run(listener.stop(0), _STOP)
            dispatcher.close()
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ended.set()

    def info(self) -> dict[str, Any]:
        """Return a report about the server, as `paragent agent-server info` prints it, for a server in this process.

        Raises:
            UsageError: the server does not run in this process.
        """
        if self._server is None:
            raise UsageError("info() is for a server that runs in this process; use `paragent agent-server info`")
        dispatcher, _ = self._server
        return dispatcher.report()

    def __enter__(self) -> Self:
        self.launch(in_subprocess=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _launch_here(self) -> None:
        from paragent.remote.server.policy import Policy
        from paragent.remote.server.service import open_server
        from paragent.transport.loop import run

        if self._peer_tls is not None:
            self._peer_tls.channel_credentials()  # now, and not when the first result is fetched
        policy = Policy(
            self._classes,
            accept_code=self._accept_code,
            nesting=self._limits.nesting,
            peer_tls=self._peer_tls,
            trusted=self._trusted,
            own_address=lambda: self.address,
            accept_state=self._accept_state,
            reconnect_timeout=self._reconnect_timeout,
        )
        opening = open_server(
            self.address,
            policy,
            load_token(),
            tls=self._tls,
            limits=self._limits,
            lease=self._lease,
            stop=self._ended.set,
            failed=self._thread_failed,
        )
        dispatcher, listener, port = run(opening, _START)
        self.address = Address(self.address.host, port)
        self._server = (dispatcher, listener)

    def _thread_failed(self, name: str, error: BaseException) -> None:
        """Stop the server: without the thread its clients would wait for ever."""
        self._failure = f"the agent server ended: its thread {name!r} failed with {type(error).__name__}"
        write_traceback(f"the thread {name!r} ended unexpectedly, so the agent server at {self.address} ends", error)
        # Not in this thread, which may be the I/O loop's: `shutdown` waits for that loop.
        start_thread(self.shutdown, name="paragent-shutdown")

    def _launch_process(self) -> None:
        import pickle

        from paragent.serialization.packing import Packer

        settings = {
            "host": self.address.host,
            "port": self.address.port,
            "custom_agent_classes": self._classes,
            "accept_code": self._accept_code,
            "tls": self._tls,
            "peer_tls": self._peer_tls,
            "trusted_servers": self._trusted_servers,
            "accept_state": self._accept_state,
            "limits": self._limits,
            "lease": self._lease,
            "reconnect_timeout": self._reconnect_timeout,
        }
        payload = Packer().pack(settings, "the settings of an agent server")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paragent.remote.children.child_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((sys.path, payload.code, payload.body), self._process.stdin)
        self._process.stdin.flush()
        with self._process.stdout as answers:
            reply = answers.readline().decode().strip()
        if not reply.isdigit():
            self.shutdown()
            raise (ConfigError if reply else ServerLost)(reply or "the process of the agent server died at its start")
        self.address = Address(self.address.host, int(reply))

    def _wait(self) -> None:
        while not self._ended.wait(0.2):
            if self._signalled:
                return
            if self._process is not None and self._process.poll() is not None:
                return

    @contextlib.contextmanager
    def stopping_at_signals(self) -> Iterator[None]:
        """Context manager in which SIGTERM and Ctrl-C stop the server. Only the main thread may use it."""

        def stop() -> None:
            self._signalled = True

        with signals_handled(stop):
            yield
