"""A run at one moment, for whoever shows it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paragent.rollout.board import Sighting
from paragent.store import Play, PlayStatus
from paragent.store.records import reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from paragent.rollout.machines import MachinesSeen
    from paragent.store import Summary

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Counts that begin with what earlier sessions recorded, so that a resumed run shows the whole."""

    run: str
    path: Path
    total: int
    done: int = 0
    """Durable results, without those that are owed again."""
    score: float = 0.0
    counted: int = 0
    """Results that enter the mean."""
    broken: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    """By what failed, the message of the last error of that kind."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    under_way: int = 0
    replays: int = 0
    """Plays that infrastructure ended and that were tried again."""
    before: int = 0
    """Results of earlier sessions."""
    started: float = field(default_factory=time.monotonic)
    note: str = ""
    """What is being done besides playing: stopping, for example."""
    sighting: Sighting = field(default_factory=Sighting)
    machines: MachinesSeen | None = None

    @classmethod
    def resumed(cls, run: str, path: Path, summary: Summary, failures: Mapping[str, int]) -> Tally:
        """Begin with what the journal has; `failures` are those that are final, by kind."""
        tally = cls(run, path, summary.rollouts)
        tally.done = tally.before = summary.rollouts - summary.owed
        tally.failures.update(failures)
        tally.reasons.update(summary.reasons)
        if summary.mean_of_played is not None:
            failed = (PlayStatus.FAILED, PlayStatus.TIMED_OUT)
            tally.counted = summary.scored + sum(summary.statuses[status] for status in failed)
            tally.score = summary.mean_of_played * tally.counted
        tally.prompt_tokens, tally.completion_tokens = summary.prompt_tokens, summary.completion_tokens
        return tally

    @property
    def mean(self) -> float | None:
        """The score so far, with everything that failed as 0."""
        return self.score / (self.counted + self.broken) if self.counted + self.broken else None

    @property
    def seconds(self) -> float:
        """Of this session."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """At the pace of this session."""
        here = self.done + self.broken - self.before
        return (self.total - self.done - self.broken) * self.seconds / here if here else None

    def count(self, play: Play) -> None:
        """Take in a play that is durable."""
        if play.prompt_tokens is None or self.prompt_tokens is None:
            self.prompt_tokens = self.completion_tokens = None
        else:
            self.prompt_tokens += play.prompt_tokens
            self.completion_tokens = (self.completion_tokens or 0) + (play.completion_tokens or 0)
        if not play.decides:
            self.replays += 1
            return
        if play.kind:
            self.failures[play.kind] += 1
            self.reasons[play.kind] = reason_of(play.error)
        if play.status is PlayStatus.INFRASTRUCTURE:
            self.broken += 1
            return
        self.done += 1
        if play.score is not None or play.status is not PlayStatus.COMPLETED:
            self.counted += 1
            self.score += play.score or 0.0
