"""Waiting for several lazy results: `wait` and `as_completed`, as in `concurrent.futures`."""

from __future__ import annotations

import functools
import math
import queue
import time
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from paragent._internal.threads import wait_in_slices
from paragent.errors import CallCancelled, UsageError
from paragent.remote.result import FAILED, RAISED, call_of, checked_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from paragent.remote.result import Result

    ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]

__all__ = ["as_completed", "wait"]

T = TypeVar("T")


def wait(
    results: Iterable[Result[T]], timeout: float | None = None, return_when: ReturnWhen = ALL_COMPLETED
) -> tuple[list[Result[T]], list[Result[T]]]:
    """Wait until calls have ended or `timeout` seconds have passed; return `(done, not done)`, each in the given order.

    A call that failed is done; its error is not raised here.

    Args:
        results: what calls to remote agents returned. A result that occurs twice is returned once.
        timeout: the seconds to wait; None: no limit.
        return_when: a constant of `concurrent.futures`. ALL_COMPLETED: when all have ended. FIRST_COMPLETED: when one has ended.
            FIRST_EXCEPTION: when one has failed, or all have ended; a cancelled call has not failed.

    Raises:
        UsageError: one of them is not a lazy result, or `return_when` is unknown.
    """
    # By identity: comparing two results would wait for their values.
    waited = {id(result): checked_result(result, "paragent.wait") for result in results}.values()
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise UsageError(
            "return_when must be FIRST_COMPLETED, FIRST_EXCEPTION or ALL_COMPLETED of concurrent.futures, "
            f"not {return_when!r}"
        )
    try:
        for result in as_completed(waited, timeout):
            if return_when == FIRST_COMPLETED or (return_when == FIRST_EXCEPTION and _has_failed(result)):
                break
    except TimeoutError:
        pass  # the return value says which calls have not ended
    done: list[Result[T]] = []
    pending: list[Result[T]] = []
    for result in waited:  # asked once: a call that ends meanwhile must not be missing in both lists
        (done if result.done() else pending).append(result)
    return done, pending


def as_completed(results: Iterable[Result[T]], timeout: float | None = None) -> Iterator[Result[T]]:
    """Return an iterator of results in the order in which their calls end; those that have ended come first.

    Args:
        results: what calls to remote agents returned. A result that occurs twice is yielded once.
        timeout: seconds from now after which the iterator raises `TimeoutError`; None: no limit. The calls continue.

    Raises:
        UsageError: one of them is not a lazy result.
        TimeoutError: (while iterating) calls have not ended within `timeout` seconds.
        ValueError: `timeout` is NaN.
    """
    if timeout is not None and math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds, not NaN")
    # By identity: comparing two results would wait for their values.
    waiting = {id(result): checked_result(result, "paragent.as_completed") for result in results}
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    reports = {key: functools.partial(ended.put, key) for key in waiting}
    for key, result in waiting.items():
        if result.done() or not call_of(result).watch(reports[key]):
            reports[key]()
    return _in_order_of_end(waiting, reports, ended, None if timeout is None else time.monotonic() + timeout)


def _in_order_of_end(
    waiting: dict[int, Result[Any]],
    reports: Mapping[int, Callable[[], object]],
    ended: queue.SimpleQueue[int],
    deadline: float | None,
) -> Iterator[Result[Any]]:
    def take(seconds: float) -> int | None:
        try:
            return ended.get(timeout=seconds)
        except queue.Empty:
            return None

    count = len(waiting)
    try:
        while waiting:
            key = wait_in_slices(take, None if deadline is None else deadline - time.monotonic())
            if key is None:
                raise TimeoutError(f"{len(waiting)} of {count} calls have not ended; they continue")
            if key in waiting:  # a call that ends while its watcher is added is reported twice
                yield waiting.pop(key)
    finally:
        for key, result in waiting.items():
            call_of(result).unwatch(reports[key])


def _has_failed(result: Result[Any]) -> bool:
    call = call_of(result)
    return call.state == FAILED or (call.state == RAISED and not isinstance(call.value, CallCancelled))
