"""A host behind gRPC: sessions over streams, leases between them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from paragent._internal.threads import fatal, write_traceback
from paragent.errors import ParagentError, ProtocolError
from paragent.remote.server.dispatcher import Host
from paragent.transport.server import RpcServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy
    from paragent.remote.server.session import Session
    from paragent.transport.address import Address
    from paragent.transport.auth import Token
    from paragent.transport.limits import Limits
    from paragent.transport.server import ServerStream
    from paragent.transport.tls import TlsConf

__all__ = ["AgentService", "open_server"]

_IDENTITY = re.compile("[0-9a-f]{32}")


class AgentService:
    """The service `agents`."""

    def __init__(self, host: Host, lease: float, window: int) -> None:
        self._host, self._lease, self._window = host, lease, window

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], tuple[Session, int]]:
        """Find or make the client's session."""
        identity, heard, again = hello.get("session"), hello.get("received"), hello.get("reconnect")
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
            "received": session.heard,
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
        serving = asyncio.current_task()
        writer.add_done_callback(lambda writer: self._written(writer, session, serving))
        try:
            while session.stream is stream:
                message = await stream.read()
                if session.stream is not stream:
                    break  # the client has connected again meanwhile and repeats what it said here
                self._hear(session, message)
                if session.pause:
                    await asyncio.sleep(session.pause)
        except asyncio.CancelledError:
            if not _failure_of(writer):
                raise
            raise ProtocolError("the server could not encode what it has to say to this client") from None
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

    def _written(self, writer: asyncio.Task[None], session: Session, serving: asyncio.Task[None] | None) -> None:
        """End the session of a client if what tells it of its results failed: it would wait for ever. Others go on."""
        if error := _failure_of(writer):
            write_traceback("the results of a client could not be sent, so its session ends", error)
            self._host.end_session(session)
            if serving is not None:
                serving.cancel()

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


def _failure_of(writer: asyncio.Task[None]) -> BaseException | None:
    return writer.exception() if writer.done() and not writer.cancelled() else None


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
    service = AgentService(host, lease, limits.window_bytes)
    server = RpcServer(address, {"agents": service}, token, tls=tls, limits=limits)
    return host, server, await server.start()
