"""What one worker was sent already, so that code and targets travel to it once."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

from paragent.engines.wire import Work
from paragent.parcels import Parcel
from paragent.parcels.codebook import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from paragent.engines.base import Call

__all__ = ["Manifest"]

_CODE_KEPT = 512
"""Classes and functions that a worker keeps, at 2 kB or so each; more where calls under way and targets need them."""
_TARGETS_KEPT = 128
"""Targets that a worker keeps; the one not used for longest is sent again when it is needed again."""


class Manifest:
    """Writes the frames of work for one receiver and remembers what it has."""

    def __init__(self) -> None:
        self._targets: OrderedDict[int, tuple[int, Parcel]] = OrderedDict()
        self._next_target = 0
        self._code_sent: OrderedDict[str, None] = OrderedDict()
        """The digests of the code that the receiver has, the one not used for longest first."""
        self._code: dict[str, bytes] = {}
        self._forgotten: list[str] = []

    def add_code(self, code: Mapping[str, bytes]) -> None:
        """Have code sent with the next frame although no parcel of it carries it, unless the receiver has it."""
        for digest, blob in code.items():
            if digest in self._code_sent:
                self._code_sent.move_to_end(digest)
            else:
                self._code_sent[digest] = None
                self._code[digest] = blob

    def forget_code(self, digests: Iterable[str]) -> None:
        """Have the receiver told, with the next frame, that it may forget code which no call under way needs."""
        for digest in digests:
            if digest in self._code_sent:
                del self._code_sent[digest]
                self._code.pop(digest, None)
                self._forgotten.append(digest)

    def tidy(self, under_way: Iterable[Call]) -> None:
        """Forget the code not used for longest, where there is much: a program may make a new function for every task."""
        excess = len(self._code_sent) - _CODE_KEPT
        if excess <= 0:
            return
        needed: set[str] = set()
        for _, target in self._targets.values():
            needed.update(target.code)
        for call in under_way:
            needed.update(call.target.code)
            if type(call.argument) is Parcel:
                needed.update(call.argument.code)
        idle = (digest for digest in self._code_sent if digest not in needed and not digest.startswith(MODULES))
        self.forget_code(list(islice(idle, excess + _CODE_KEPT // 2)))

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
        forget_code, self._forgotten = self._forgotten, []
        return Work(code, targets, forget, wire, forget_code)

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
