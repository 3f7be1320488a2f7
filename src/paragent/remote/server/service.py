"""A host behind gRPC: sessions over streams, leases between them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from paragent._threads import fatal, write_traceback
from paragent.errors import ParagentError, ProtocolError
from paragent.remote.server.host import Host
from paragent.rpc.server import RpcServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy
    from paragent.remote.server.session import Session
    from paragent.rpc.address import Address
    from paragent.rpc.limits import Limits
    from paragent.rpc.server import ServerStream
    from paragent.rpc.tls import TlsConf
    from paragent.rpc.token import Token

__all__ = ["AgentService", "open_server"]

_IDENTITY = re.compile("[0-9a-f]{32}")


class AgentService:
    """The service `agents`."""

    def __init__(
        self, host: Host, lease: float, window: int, failed: Callable[[str, BaseException], object] = fatal
    ) -> None:
        self._host, self._lease, self._window, self._failed = host, lease, window, failed

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], tuple[Session, int]]:
        """Find or make the client's session."""
        identity, heard, again = hello.get("session"), hello.get("heard"), hello.get("again")
        if not isinstance(identity, str) or not _IDENTITY.fullmatch(identity) or not isinstance(heard, int):
            raise ProtocolError("the hello names no session of 32 hexadecimal digits")
        session, known = self._host.open_session(identity)
        session.data_only = hello.get("data_only") is True
        session.program = str(hello.get("program") or "").encode(errors="replace").decode()
        if again and not known:
            # Its lease ran out or this is another server: it must not believe that its agents are still here.
            self._host.end_session(session)
        elif session.stream is None:
            self._start_lease(session)  # it may vanish before it is served
        welcome = {
            "instance": self._host.instance,
            "resumed": known,
            "heard": session.heard,
            "window": self._window,
            "accepts_code": self._host.policy.accept_code,
            "peer_tls": self._host.policy.peer_tls is not None,
        }
        return welcome, (session, heard)

    async def serve(self, stream: ServerStream, admitted: tuple[Session, int]) -> None:
        """Hear what a client says, and tell it what is ready, until either side ends."""
        session, heard = admitted
        if session.writer is not None:
            session.writer.cancel()
        try:
            unheard = session.begin(stream, heard)
        except ProtocolError:
            self._host.end_session(session)
            raise
        writer = session.writer = asyncio.create_task(session.write(stream, unheard))
        writer.add_done_callback(self._written)
        try:
            while session.stream is stream:
                message = await stream.read()
                if session.stream is not stream:
                    break  # the client has connected again meanwhile and repeats what it said here
                self._hear(session, message)
                if session.pause:
                    await asyncio.sleep(session.pause)
        except (ProtocolError, ParagentError) as error:
            if isinstance(error, ProtocolError):
                self._host.end_session(session)
            raise
        finally:
            writer.cancel()
            if session.stream is stream:
                self._detach(session)

    def _hear(self, session: Session, message: bytes) -> None:
        try:
            session.hear(message, self._host.handle)
        except ParagentError:
            raise
        except Exception as error:
            # The rest of the frame is lost, and with it calls that their client would wait for: it has to know.
            write_traceback("a frame could not be handled, so the session of its client ends", error)
            raise ProtocolError(f"the server could not handle a frame: {type(error).__name__}") from error

    def _written(self, writer: asyncio.Task[None]) -> None:
        """End the server if what tells a client of its results failed by itself: the client would wait for ever."""
        if not writer.cancelled() and (error := writer.exception()) is not None:
            self._failed("writer of a session", error)

    def _detach(self, session: Session) -> None:
        """The connection is over; give the client time to come back."""
        session.stream = None
        session.writer = None
        if session.identity in self._host.sessions:
            self._start_lease(session)

    def _start_lease(self, session: Session) -> None:
        """End a session after the lease, unless its client is served by then: every session without a stream has one."""
        if session.lease is not None:
            session.lease.cancel()
        loop = asyncio.get_running_loop()
        session.lease = loop.call_later(self._lease, self._host.end_session, session)


async def open_server(
    address: Address,
    policy: Policy,
    token: Token,
    *,
    tls: TlsConf | None,
    limits: Limits,
    lease: float,
    stop: Callable[[], None],
    failed: Callable[[str, BaseException], object] = fatal,
) -> tuple[Host, RpcServer, int]:
    """Start a server on the running loop; return its host, its listener and its port.

    `failed` is called with its name and the error if a thread or task ends without which calls would never be answered.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    host = Host(policy, limits, asyncio.get_running_loop(), stop, failed)
    service = AgentService(host, lease, limits.window_bytes, failed)
    server = RpcServer(address, {"agents": service}, token, tls=tls, limits=limits)
    return host, server, await server.start()
