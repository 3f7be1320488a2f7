"""Measurements: contenders run in turns, round by round, and the medians of their samples are compared with targets.

A `Measurement` has a question and contenders. The first contender is the subject; the others are its peers. All of them are
open at the same time and run in turns within a round, so that a host that slows down affects all of them.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Literal

__all__ = ["Contender", "Judgement", "Measurement", "Result", "Run", "Target", "Verdict", "measure"]

Run = Callable[[], float]
"""Takes one sample and returns it in the measurement's unit."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An implementation that is measured."""

    name: str
    open: Callable[[int], AbstractContextManager[Run]]
    """Called with the size: prepares what is not measured, and yields the function that takes a sample."""
    needs: str = ""
    """A module; without it this contender is left out."""
    reference: bool = False
    """Whether its values are only shown, not compared: a bound that no contender can reach, or another setting of paragent."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for the subject's median: absolute, or a multiple of a peer's median."""

    direction: Literal["at least", "at most"]
    bound: float
    times: str = ""
    """The peer whose median the bound multiplies; empty: the bound is in the measurement's unit."""

    def holds(self, value: float) -> bool:
        """Return whether `value`, a ratio or in the measurement's unit, meets the target."""
        return value >= self.bound if self.direction == "at least" else value <= self.bound


@dataclass(frozen=True, slots=True)
class Measurement:
    """A question, the contenders, and the targets for the first of them."""

    name: str
    question: str
    unit: str
    size: int
    quick_size: int
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()
    warm_up: bool = True
    """Whether each contender first takes one sample that does not count."""
    most_rounds: int | None = None
    """Maximum number of rounds, for measurements that take long and vary little."""
    title: str = ""
    """A few words for plots and tables; empty: the name."""
    group: str = ""
    """The section of the page; set by the registry."""
    higher_is_better: bool | None = None
    """None: as the targets say; without targets, rates (`tasks/s`) are better if higher, everything else if lower."""

    @property
    def prefers_higher(self) -> bool:
        """Whether a higher value is better."""
        if self.higher_is_better is not None:
            return self.higher_is_better
        if self.targets:
            return self.targets[0].direction == "at least"
        return self.unit.endswith("/s")


class Verdict(StrEnum):
    """Whether a target was met."""

    PASS = "pass"
    MISS = "miss"
    OPEN = "not measured"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A target, the value that was reached, and the verdict."""

    target: Target
    reached: float | None
    """The ratio, or the subject's median; None if one of the two was not measured."""
    verdict: Verdict


@dataclass(slots=True)
class Result:
    """The samples of one measurement; medians, ratios and verdicts are computed from them."""

    name: str
    question: str
    unit: str
    subject: str
    size: int
    samples: dict[str, list[float]]
    """By contender, in the order of the rounds."""
    absent: dict[str, str] = field(default_factory=dict)
    """Contenders that have no samples, and why."""
    targets: list[Target] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    """Contenders that are shown but not compared."""
    title: str = ""
    group: str = ""
    prefers_higher: bool = True
    seconds: float = 0.0
    """How long the measurement took, with everything that it prepared."""

    def median(self, contender: str) -> float | None:
        """Return the median of a contender's samples, or None if it is absent."""
        return statistics.median(self.samples[contender]) if self.samples.get(contender) else None

    def ratio(self, peer: str) -> float | None:
        """Return the subject's median divided by the peer's, or None if one of them is absent."""
        ours, theirs = self.median(self.subject), self.median(peer)
        return ours / theirs if ours is not None and theirs else None

    def peers(self) -> list[str]:
        """Return the contenders with samples that the subject is compared with."""
        return [name for name in self.samples if name != self.subject and name not in self.references]

    def advantage(self, peer: str) -> float | None:
        """Return how many times better the subject is than a peer: above 1 the subject is better, below 1 the peer.

        None if one of them is absent or 0.
        """
        ratio = self.ratio(peer)
        if not ratio:
            return None
        return ratio if self.prefers_higher else 1 / ratio

    def judge(self, target: Target) -> Judgement:
        """Compare the subject's median with one target."""
        reached = self.ratio(target.times) if target.times else self.median(self.subject)
        if reached is None:
            return Judgement(target, None, Verdict.OPEN)
        return Judgement(target, reached, Verdict.PASS if target.holds(reached) else Verdict.MISS)

    def judgements(self) -> list[Judgement]:
        """Compare the subject's median with every target."""
        return [self.judge(target) for target in self.targets]


def measure(measurement: Measurement, *, rounds: int, quick: bool = False) -> Result:
    """Take `rounds` samples of each contender, in turns.

    A contender that is not installed, or that fails, is left out of the result's samples and named in `absent`.
    """
    size = measurement.quick_size if quick else measurement.size
    result = Result(
        measurement.name,
        measurement.question,
        measurement.unit,
        measurement.contenders[0].name,
        size,
        samples={},
        targets=list(measurement.targets),
        references=[contender.name for contender in measurement.contenders if contender.reference],
        title=measurement.title or measurement.name,
        group=measurement.group,
        prefers_higher=measurement.prefers_higher,
    )
    started = perf_counter()
    try:
        _take_samples(measurement, size, rounds, result)
    except Exception as problem:  # noqa: BLE001 - the samples are complete when contenders are closed
        print(f"{measurement.name}: a contender failed when it was closed: {problem!r}", file=sys.stderr)
    result.seconds = perf_counter() - started
    return result


def _take_samples(measurement: Measurement, size: int, rounds: int, result: Result) -> None:
    with ExitStack() as stack:
        runs: dict[str, Run] = {}
        for contender in measurement.contenders:
            if contender.needs and importlib.util.find_spec(contender.needs) is None:
                result.absent[contender.name] = f"{contender.needs} is not installed"
                continue
            try:
                runs[contender.name] = stack.enter_context(contender.open(size))
            except Exception as problem:  # noqa: BLE001 - a contender that cannot start must not end the others
                result.absent[contender.name] = f"failed: {type(problem).__name__}: {problem}"
        if measurement.warm_up:
            _round(runs, 0, result)
            result.samples.clear()
        for number in range(min(rounds, measurement.most_rounds or rounds)):
            _round(runs, number, result)


def _round(runs: dict[str, Run], number: int, result: Result) -> None:
    """Take one sample of each contender; the order rotates from round to round."""
    names = list(runs)
    begin = number % len(names) if names else 0
    for name in names[begin:] + names[:begin]:
        gc.collect()
        try:
            result.samples.setdefault(name, []).append(runs[name]())
        except Exception as problem:  # noqa: BLE001 - a contender that fails must not end the others
            result.absent[name] = f"failed: {type(problem).__name__}: {problem}"
            result.samples.pop(name, None)
            del runs[name]
