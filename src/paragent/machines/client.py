"""A pool that is served elsewhere, with the same face as one in this process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.clock import monotonic
from paragent.errors import ConfigError, ParagentError, PoolStopped, ServerLost
from paragent.machines.lease import PoolFace
from paragent.machines.protocol import SERVICE, decode, encode, error_from, grant_from, status_from
from paragent.transport.address import Address
from paragent.transport.auth import Token, load_token
from paragent.transport.client import ClientStream, connect
from paragent.transport.loop import io_loop

if TYPE_CHECKING:
    from paragent.machines.lease import LeaseRequest
    from paragent.machines.machine import Grant, PoolStatus
    from paragent.transport.tls import TlsConf

__all__ = ["PoolClient"]

_CONNECT_SECONDS = 5.0
_RETRY_PAUSE = 0.2
RECONNECT_SECONDS = 30.0
"""How long a request outlives a pool that cannot be reached: long enough for a service to be started again."""
_RELEASE_SECONDS = 5.0
"""How long a release is tried; after that the lease ends by its deadline."""


class PoolClient(PoolFace):
    """A pool at `host:port`. Making one connects to nothing; it can be pickled, and may be used from any thread.

    Args:
        address: `host:port`, as `paragent pool serve` prints it.
        token: What proves that this client may use the pool; by default the user's, as in `PARAGENT_TOKEN`.
        tls: For a pool that is served with TLS.
        reconnect: Seconds that a request for a machine outlives a pool that cannot be reached.

    Raises:
        ConfigError: `address` is no address.
    """

    def __init__(
        self,
        address: str,
        *,
        token: Token | None = None,
        tls: TlsConf | None = None,
        reconnect: float = RECONNECT_SECONDS,
    ) -> None:
        super().__init__()
        host, separator, port = address.rpartition(":")
        if not separator:
            raise ConfigError(f"a pool's address has the form host:port, not {address!r}")
        self.address = Address.of(host.strip("[]"), port)
        self._given, self._tls, self._reconnect = token, tls, reconnect
        self._line: _Line | None = None
        self._dialling: asyncio.Lock | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        if self._given is not None:
            raise ConfigError(
                "a PoolClient with a token of its own cannot travel; let the other side use PARAGENT_TOKEN"
            )
        return (_rebuild, (str(self.address), self._tls, self._reconnect))

    def close(self) -> None:
        """Hang up; leases that are still held end by their deadline."""
        self._closed = True
        if self._line is not None:
            self.wait(self._line.close(), _CONNECT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drain(self) -> None:
        """Ask the pool to grant nothing more and to end when all machines came back."""
        self.wait(self._call("drain"), _CONNECT_SECONDS * 2)

    # --- what a face is made of ---------------------------------------------------------------------------------------

    def _loop(self) -> asyncio.AbstractEventLoop:
        return io_loop()

    async def _acquire(self, request: LeaseRequest) -> Grant:
        return grant_from(await self._insist(self._reconnect, "acquire", *request))

    async def _withdraw(self, request_id: str) -> None:
        await self._call("withdraw", request_id)

    async def _renew(self, token: int) -> float:
        return float(await self._call("renew", token))

    async def _release(self, token: int) -> bool:
        try:
            return bool(await self._insist(_RELEASE_SECONDS, "release", token))
        except ServerLost:
            return False

    async def _reset(self, token: int) -> Grant:
        return grant_from(await self._call("reset", token))

    async def _pause(self, token: int, paused: bool) -> None:
        await self._call("pause", token, paused)

    async def _status(self) -> PoolStatus:
        return status_from(await self._call("status"))

    async def _retire(self, machine_id: str) -> None:
        await self._call("retire", machine_id)

    # --- the line -----------------------------------------------------------------------------------------------------

    async def _insist(self, seconds: float, name: str, *arguments: Any) -> Any:
        """Call, and call again while the pool cannot be reached; only for what may be said twice.

        The time counts from the moment at which the pool was last heard of, so that waiting long is no reason to stop.
        """
        silent_since: float | None = None
        while True:
            try:
                line = await self._connected()
                silent_since = None
                return await line.call(name, *arguments)
            except ServerLost:
                now = monotonic()
                silent_since = now if silent_since is None else silent_since
                if now - silent_since >= seconds or self._closed:
                    raise
            await asyncio.sleep(_RETRY_PAUSE)

    async def _call(self, name: str, *arguments: Any) -> Any:
        return await (await self._connected()).call(name, *arguments)

    async def _connected(self) -> _Line:
        if self._closed:
            raise PoolStopped("this client was closed")
        if self._dialling is None:
            self._dialling = asyncio.Lock()
        async with self._dialling:
            if self._line is None or self._line.broken:
                self._line = _Line(await self._dial(self._given or load_token()))
            return self._line

    async def _dial(self, token: Token) -> ClientStream:
        try:
            stream, _ = await connect(self.address, SERVICE, token, self._tls, {}, _CONNECT_SECONDS)
        except ServerLost as error:
            host, port, _ = self.address
            cure = f"start one there with: paragent pool serve --host {host} --port {port}"
            if self._tls is None:
                cure += ", or connect with TLS (--tls-ca) if it is served so"
            raise ServerLost(f"no pool answers at {self.address}; {cure} ({error})") from None
        return stream


def _rebuild(address: str, tls: TlsConf | None, reconnect: float) -> PoolClient:
    return PoolClient(address, tls=tls, reconnect=reconnect)


class _Line:
    """One connection: calls go out, answers come back in any order."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._turn = asyncio.Lock()  # one message at a time is written
        self.broken = False
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="pool client")

    async def call(self, name: str, *arguments: Any) -> Any:
        """Send a call and wait for its answer.

        Raises:
            ServerLost: the connection broke; whether the call was performed is unknown.
            ParagentError: what the pool raised.
        """
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with self._turn:
                await self._stream.write(encode(**{"call": number, "do": name, "with": arguments}))
            return await future
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        error: ParagentError = ServerLost("the connection to the pool was closed")
        try:
            while True:
                fields = decode(await self._stream.read())
                future = self._waiting.pop(fields["call"], None)
                if future is None or future.done():
                    continue
                if "error" in fields:
                    future.set_exception(error_from(fields["error"]))
                else:
                    future.set_result(fields.get("answer"))
        except ParagentError as reason:
            error = reason if isinstance(reason, ServerLost) else ServerLost(str(reason))
        finally:
            self.broken = True
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            with contextlib.suppress(ParagentError):
                await self._stream.close()

    async def close(self) -> None:
        """Hang up."""
        self._reader.cancel()
        await asyncio.wait([self._reader])
