"""How often a server looks for garbage in cycles: seldom while it finds none, often again once it does.

A crowd of calls under way is a million objects that are all needed, and looking through them is an eighth of what a server then
does. But agents whose garbage does hang in cycles, with a picture in each, must not fill the memory.
"""

from __future__ import annotations

import gc
from typing import Any

__all__ = ["collect_as_needed"]

_FEWEST = 100_000
"""New objects after which the collector looks. A server makes and drops them by the hundred thousand at a time; with
Python's 700 half of its time would go into looking."""
_MOST = 16 * _FEWEST
"""The same while nothing is ever found: what 30,000 calls under way (15 objects each) and 500,000 that wait (2) come to."""
_OLDER = 5_000_000
"""New objects after which those that were looked at once are looked at again. Calls that wait are old objects that are gone
in a second; with so many in between it is mostly what stays."""
_FOUND = 0.01
"""The share of the new objects, found to be garbage, from which on looking was worth it."""


def collect_as_needed() -> None:
    """Have the collector of this process look as often as what it finds is worth, unless somebody else sets it."""
    ours = _thresholds(_FEWEST)

    def adapt(phase: str, info: dict[str, Any]) -> None:
        nonlocal ours
        if phase != "stop" or gc.get_threshold() != ours:
            return
        if info["collected"] > _FOUND * ours[0]:
            ours = _thresholds(_FEWEST)
        elif info["generation"] == 0:
            ours = _thresholds(min(2 * ours[0], _MOST))
        gc.set_threshold(*ours)

    gc.set_threshold(*ours)
    gc.callbacks.append(adapt)
    gc.enable()


def _thresholds(youngest: int) -> tuple[int, int, int]:
    return youngest, _OLDER // youngest, 10
