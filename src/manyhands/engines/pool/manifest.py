"""What one worker was sent already, so that code and targets travel to it once."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from manyhands.engines.wire import Work
from manyhands.parcels import Parcel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from manyhands.engines.base import Call

__all__ = ["Manifest"]

_TARGETS_KEPT = 128
"""Targets that a worker keeps; the one not used for longest is sent again when it is needed again."""


class Manifest:
    """Writes the frames of work for one receiver and remembers what it has."""

    def __init__(self) -> None:
        self._targets: OrderedDict[int, tuple[int, Parcel]] = OrderedDict()
        self._next_target = 0
        self._code_sent: set[str] = set()
        self._code: dict[str, bytes] = {}

    def add_code(self, code: Mapping[str, bytes]) -> None:
        """Have code sent with the next frame although no parcel of it carries it, unless the receiver has it."""
        for digest, blob in code.items():
            if digest not in self._code_sent:
                self._code_sent.add(digest)
                self._code[digest] = blob

    def work(self, calls: Iterable[tuple[int, Call]]) -> Work:
        """Return the frame that gives the receiver `calls`, each under the number it is paired with."""
        targets: dict[int, bytes] = {}
        forget: list[int] = []
        wire = []
        for number, call in calls:
            key = self._target(call.target, targets, forget)
            argument = call.argument
            if type(argument) is Parcel and argument.code:
                argument = self._slim(argument)
            wire.append((number, key, argument, call.label, call.limit, call.is_async))
        code, self._code = self._code, {}
        return Work(code, targets, forget, wire)

    def _target(self, target: Parcel, bodies: dict[int, bytes], forget: list[int]) -> int:
        known = self._targets.get(id(target))
        if known is not None:
            self._targets.move_to_end(id(target))
            return known[0]
        key = self._next_target
        self._next_target += 1
        self._targets[id(target)] = (key, target)
        bodies[key] = self._slim(target).body
        if len(self._targets) > _TARGETS_KEPT:
            forget.append(self._targets.popitem(last=False)[1][0])
        return key

    def _slim(self, parcel: Parcel) -> Parcel:
        """Return the parcel without its code, which goes with the frame where the receiver does not have it."""
        self.add_code(parcel.code)
        return Parcel(parcel.body, {})
