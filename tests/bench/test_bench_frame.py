"""The frame of the benchmark on contenders that only pretend: nothing here is timed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from bench.blocking import most_at_once
from bench.machine import Machine
from bench.measure import Contender, Measurement, Result, Run, Target, Verdict, measure
from bench.plot import draw
from bench.registry import measurements
from bench.report import Report, amount, as_markdown, as_table, from_json, marks, newest, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MACHINE = Machine("a CPU", 2, 8.0, "Linux", "CPython 3.11", {"paragent": "0.1"}, load_before=0.1)


class Pretender:
    """A contender that returns given samples and writes down when it was called."""

    def __init__(self, name: str, samples: list[float], diary: list[str], needs: str = "") -> None:
        self.samples, self.diary, self.name = iter(samples), diary, name
        self.contender = Contender(name, self.open, needs)

    @contextmanager
    def open(self, size: int) -> Iterator[Run]:
        self.diary.append(f"open {self.name} {size}")
        yield self.run
        self.diary.append(f"close {self.name}")

    def run(self) -> float:
        self.diary.append(self.name)
        return next(self.samples)


def of(*contenders: Contender, targets: tuple[Target, ...] = (), warm_up: bool = False) -> Measurement:
    return Measurement("speed", "How fast?", "tasks/s", 100, 10, contenders, targets, warm_up)


def report(*results: Result) -> Report:
    return Report(MACHINE, "2026-01-01T00:00:00+00:00", 3, quick=False, results=list(results))


def result(**changes: object) -> Result:
    samples = {"ours": [10.0, 12.0, 50.0], "theirs": [3.0, 2.0, 4.0]}
    made = Result("speed", "How fast?", "tasks/s", "ours", 100, samples)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.slow
def test_contenders_take_turns_and_who_begins_changes() -> None:
    diary: list[str] = []
    a, b = Pretender("a", [1, 2, 3], diary), Pretender("b", [1, 2, 3], diary)
    measure(of(a.contender, b.contender), rounds=3)
    assert diary == ["open a 100", "open b 100", *"abbaab", "close b", "close a"]


def test_the_warm_up_does_not_count() -> None:
    measured = measure(of(Pretender("a", [99, 1, 2], []).contender, warm_up=True), rounds=2)
    assert measured.samples == {"a": [1, 2]}


def test_quick_takes_the_small_size_and_most_rounds_is_a_limit() -> None:
    diary: list[str] = []
    small = Measurement("m", "?", "s", 100, 10, (Pretender("a", [1, 2], diary).contender,), (), False, most_rounds=1)
    assert measure(small, rounds=5, quick=True).samples == {"a": [1]}
    assert diary == ["open a 10", "a", "close a"]


def test_a_peer_that_is_not_installed_is_named_and_its_target_is_open() -> None:
    ours, theirs = Pretender("ours", [8], []), Pretender("theirs", [], [], needs="no_such_module")
    measured = measure(of(ours.contender, theirs.contender, targets=(Target("at least", 4, "theirs"),)), rounds=1)
    assert measured.absent == {"theirs": "no_such_module is not installed"}
    assert [judgement.verdict for judgement in measured.judgements()] == [Verdict.OPEN]


@pytest.mark.slow
def test_a_contender_that_fails_is_out_and_the_others_go_on() -> None:
    ours, theirs = Pretender("ours", [1, 2, 3], []), Pretender("theirs", [1], [])
    measured = measure(of(ours.contender, theirs.contender), rounds=3)
    assert measured.samples == {"ours": [1, 2, 3]}
    assert measured.absent["theirs"].startswith("failed: StopIteration")


def test_medians_and_ratios() -> None:
    assert result().median("ours") == 12.0
    assert result().ratio("theirs") == 4.0
    assert result().median("nobody") is None
    assert result().ratio("nobody") is None


@pytest.mark.parametrize(
    ("target", "reached", "verdict"),
    [
        (Target("at least", 4, times="theirs"), 4.0, Verdict.PASS),
        (Target("at least", 4.1, times="theirs"), 4.0, Verdict.MISS),
        (Target("at most", 1.5, times="theirs"), 4.0, Verdict.MISS),
        (Target("at most", 12), 12.0, Verdict.PASS),
        (Target("at most", 11.9), 12.0, Verdict.MISS),
        (Target("at least", 1, times="nobody"), None, Verdict.OPEN),
    ],
)
def test_verdicts(target: Target, reached: float | None, verdict: Verdict) -> None:
    judgement = result().judge(target)
    assert (judgement.reached, judgement.verdict) == (reached, verdict)


def test_a_target_stands_beside_the_contender_it_is_about() -> None:
    made = result(targets=[Target("at least", 5, "theirs"), Target("at most", 20)])
    assert marks(made, "ours") == [("target at most 20 tasks/s", Verdict.PASS)]
    assert marks(made, "theirs") == [("4 x, target at least 5 x", Verdict.MISS)]
    assert marks(result(), "theirs") == [("4 x", None)]


def test_markdown_shows_hits_and_misses_alike() -> None:
    made = result(targets=[Target("at least", 5, "theirs"), Target("at most", 20)], absent={"ray": "not installed"})
    text = as_markdown([report(made)])
    assert "- a CPU, 2 cores, 8 GB, Linux" in text
    assert "| ours | 12 tasks/s | 10 to 50 | target at most 20 tasks/s **pass** |" in text
    assert "| theirs | 3 tasks/s | 2 to 4 | 4 x, target at least 5 x **miss** |" in text
    assert "| ray | - | not installed |  |" in text
    assert "Targets: 1 pass, 1 miss, 0 not measured." in text


def test_the_newest_result_of_each_measurement_is_shown_with_its_run() -> None:
    early = replace(report(result(name="speed"), result(name="size")), taken="2026-01-01")
    late = replace(report(result(name="speed")), taken="2026-01-02")
    older = replace(report(result(name="size")), taken="2025-12-31")
    kept = newest([older, early, late])
    assert [(run.taken, [made.name for made in run.results]) for run in kept] == [
        ("2026-01-02", ["speed"]),
        ("2026-01-01", ["size"]),
    ]


def test_json_there_and_back_says_the_same() -> None:
    made = report(result(targets=[Target("at least", 5, "theirs")], absent={"ray": "not installed"}))
    assert from_json(to_json(made)) == made
    assert '"verdict": "miss"' in to_json(made)


def test_the_table_and_the_picture_can_be_drawn(tmp_path: Path) -> None:
    made = report(result(targets=[Target("at least", 5, "theirs"), Target("at most", 20)]))
    console = Console(width=150)
    with console.capture() as captured:
        console.print(as_table(made))
    assert "4 x, target at least 5 x  miss" in captured.get()
    draw(made, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_description_says_that_the_host_was_busy() -> None:
    assert not MACHINE.was_busy
    assert Machine("c", 2, 8.0, "L", "P", {}, load_before=1.5).lines()[-1].endswith("only ratios are reliable")


def test_amounts() -> None:
    assert [amount(v) for v in (70123.4, 12.34, 0.1234, None)] == ["70,123", "12.3", "0.123", "-"]


def test_spans_that_touch_do_not_overlap() -> None:
    assert most_at_once([(0, 1), (1, 2)]) == 1
    assert most_at_once([(0, 2), (1, 3), (1.5, 1.6)]) == 3
    assert most_at_once([]) == 0


def test_every_measurement_has_a_name_of_its_own_and_targets_about_its_contenders() -> None:
    for measurement in measurements():
        names = {contender.name for contender in measurement.contenders}
        assert {target.times for target in measurement.targets} <= names | {""}


def test_a_misspelt_measurement_is_refused_with_the_names() -> None:
    with pytest.raises(KeyError, match="trivial-tasks"):
        measurements(["carying"])
