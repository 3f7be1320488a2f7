"""Functions that the contenders run as tasks; every worker can import them."""

from __future__ import annotations

import asyncio
import time

__all__ = ["blocking_nap", "burn", "calibrated", "echo", "nap", "naps"]


def echo(number: int) -> int:
    """Return the number."""
    return number


async def nap(seconds: float) -> float:
    """Wait without blocking a thread, as a request to a model does."""
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
    """Return how many loops of `burn` take `seconds` on this host, from the fastest of several samples."""
    sample = 200_000
    best = float("inf")
    for _ in range(9):
        started = time.perf_counter()
        burn(sample)
        best = min(best, time.perf_counter() - started)
    return round(sample * seconds / best)
