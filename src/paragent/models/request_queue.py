"""Queue of requests to one endpoint: the limit of concurrent requests, those that wait, the run's rate limit."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections import deque
from typing import TYPE_CHECKING

from paragent.execution import waiting
from paragent.models.rate_limit import Limiter

if TYPE_CHECKING:
    from paragent.models.base import ModelSettings
    from paragent.models.policy import PolicyState
    from paragent.models.rate_limit_client import RateLimitClient

__all__ = ["RequestQueue", "RequestSlot"]


class RequestSlot:
    """The right of one request, and of its retries, to be in flight. A new one is not acquired."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._held = False

    async def acquire(self) -> float:
        """Wait until the request is admitted, unless it is; return the seconds of waiting."""
        if self._held:
            return 0.0
        waited = await self._queue.acquire()
        self._held = True
        return waited

    def release(self) -> None:
        """Count the request as ended, successfully or not. Idempotent."""
        if self._held:
            self._held = False
            self._queue.release()


class RequestQueue:
    """Admits the requests of one process, in order of arrival. Belongs to one event loop.

    Args:
        settings: the settings of the model.
        host: the name of the endpoint for the live display.
    """

    def __init__(self, settings: ModelSettings, host: str) -> None:
        self._settings, self._host = settings, host
        self._limiter = Limiter(settings.max_concurrency)
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Runs `_admit_waiting` when a slot becomes free without a request ending."""
        self._shared_limit: RateLimitClient | None = None
        self._controlled = settings.rate_limit is not None and settings.rate_limit.controlled
        self._policy: PolicyState | None = None
        """None until the server has sent it, and while there is no connection."""
        self.has_answered = settings.answered
        """Whether the endpoint has answered with these settings, here or in another worker. Until then the run sends one
        request at a time, so that a wrong key or address costs one request."""
        self.answers = 0
        """Requests of this process that were answered."""
        self._joined = settings.rate_limit is None
        """Whether the rate limit server has assigned a share, or cannot be reached."""
        self._connected = False
        """Whether the rate limit server can be reached. It learns of the first answer before further requests are sent: otherwise
        their failures could be known to the run before that answer."""

    @property
    def version(self) -> int | None:
        """The current version of the policy; None outside of training."""
        return None if self._policy is None else self._policy.version

    @property
    def _paused(self) -> bool:
        """Whether no request may be sent. Without a connection, a worker does not know whether it may."""
        if not self.has_answered and (not self._joined or self._limiter.in_flight or self.answers):
            return True
        return self._controlled and (self._policy is None or self._policy.paused)

    def pressure(self) -> tuple[int, int]:
        """Return the number of requests in flight and the current limit."""
        return self._limiter.in_flight, self._limiter.limit

    def connect(self) -> None:
        """Share the endpoint's rate limit with the other workers of the run, if there is a server for it. Idempotent.

        Until connected, the own adaptive limit is used.
        """
        settings = self._settings
        if self._shared_limit is not None or settings.rate_limit is None:
            return
        from paragent.models.rate_limit_client import RateLimitClient

        loop = asyncio.get_running_loop()

        def changed(share: int | None, closed: float, answered: bool) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._use_share, share, closed, answered)

        def state() -> tuple[int, int]:
            return self._limiter.in_flight, self._limiter.in_flight + len(self._queue)

        def policy_changed(policy: PolicyState | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._obey, policy)

        def obeyed() -> int:
            return 0 if (policy := self._policy) is None else policy.number

        self._shared_limit = RateLimitClient(settings, state, changed, policy_changed, obeyed)

    async def acquire(self) -> float:
        """Wait until this request is admitted; return the seconds of waiting. `release` ends it."""
        if not self._queue and not self._paused and self._limiter.admit():
            return 0.0
        began = time.monotonic()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._admit_waiting()
        try:
            with waiting(*self._reason()):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()
            elif turn in self._queue:
                self._queue.remove(turn)
            raise
        return time.monotonic() - began

    def _reason(self) -> tuple[str, float | None]:
        """Return why requests wait, and for how many seconds if that is known."""
        if not self._joined or (self._controlled and self._policy is None):
            return "connecting to the run", None
        if not self.has_answered:
            return f"waiting for the first reply of {self._host}", None
        if self._paused:
            return "waiting for the trainer, which paused all requests", None
        closed = self._limiter.opens_in()
        return f"waiting for {self._host}" + (", which returned 429" if closed else ""), closed or None

    def release(self) -> None:
        """Count a request as ended, successfully or not."""
        self._limiter.leave()
        self._admit_waiting()

    def answered(self, seconds: float) -> None:
        """Record an answer, which took `seconds`."""
        self.answers += 1
        self.has_answered = self.has_answered or not self._connected
        self._limiter.answered(seconds)
        if self._shared_limit is not None:
            self._shared_limit.answered(seconds)

    def throttled(self, retry_after: float | None) -> bool:
        """Record a request that was refused with 429; see `Limiter.throttled`."""
        general = self._limiter.throttled(retry_after)
        if self._shared_limit is not None:
            self._shared_limit.throttled(retry_after)
        return general

    def fail_waiting(self, error: Exception) -> None:
        """Let the requests that wait fail as the first one did, if the endpoint has never answered: they would fail as well."""
        if self.has_answered:
            return
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_exception(copy.copy(error))

    def server_error(self) -> None:
        """Record a server error."""
        self._limiter.server_error()
        if self._shared_limit is not None:
            self._shared_limit.server_error()

    def close(self) -> None:
        """Leave the run's rate limit. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._shared_limit is not None:
            self._shared_limit.close()

    def _use_share(self, share: int | None, closed: float, answered: bool) -> None:
        self._joined, self._connected = True, share is not None
        self.has_answered = self.has_answered or answered or (not self._connected and self.answers > 0)
        if share is None:
            self._limiter.clear_share()
        else:
            self._limiter.set_share(share, closed)
        self._admit_waiting()

    def _obey(self, policy: PolicyState | None) -> None:
        self._policy = policy
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._queue and not self._paused and self._limiter.admit():
            turn = self._queue.popleft()
            if turn.done():
                self._limiter.leave()
            else:
                turn.set_result(None)
        if self._queue and (wait := self._limiter.frees_in()) > 0:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(wait, self._admit_waiting)
