"""The tasks of the contenders: functions that every worker can import."""

from __future__ import annotations

import asyncio
import time

__all__ = ["blocking_nap", "burn", "calibrated", "echo", "nap", "naps"]


def echo(number: int) -> int:
    """Do nothing."""
    return number


async def nap(seconds: float) -> float:
    """Wait like a call to a model does, without holding a thread."""
    await asyncio.sleep(seconds)
    return seconds


def naps(count: int, seconds: float) -> int:
    """Wait `count` times concurrently, in a new event loop."""

    async def together() -> int:
        return len(await asyncio.gather(*(nap(seconds) for _ in range(count))))

    return asyncio.run(together())


def blocking_nap(seconds: float) -> tuple[float, float]:
    """Block the thread; return the start and the end by the clock that all processes share."""
    started = time.monotonic()
    time.sleep(seconds)
    return started, time.monotonic()


def burn(loops: int) -> int:
    """Compute."""
    total = 0
    for number in range(loops):
        total += number
    return total


def calibrated(seconds: float) -> int:
    """Return how many loops of `burn` take `seconds` on this machine; the best of several tries."""
    sample = 200_000
    best = float("inf")
    for _ in range(9):
        started = time.perf_counter()
        burn(sample)
        best = min(best, time.perf_counter() - started)
    return round(sample * seconds / best)
