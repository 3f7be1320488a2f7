"""The frame of the benchmark on contenders that only pretend: nothing here is timed."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from bench.__main__ import measured, run, write_documents
from bench.blocking import most_at_once
from bench.machine import Machine, code_state
from bench.measure import Contender, Measurement, Result, Run, Target, Verdict, measure
from bench.page import HEADLINES, Page, replaced
from bench.peers.environments import PEERS, peer_program
from bench.plot import draw_comparisons, draw_group
from bench.registry import GROUPS, measurements
from bench.report import Report, amount, as_table, from_json, goal, marks, newest, same_state, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
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
    made = Result("speed", "How fast?", "tasks/s", "ours", 100, samples, title="Speed", group="Tasks")
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


def test_ratios_say_how_many_times_better_paragent_is() -> None:
    slow = result(prefers_higher=False, targets=[Target("at most", 0.5, "theirs")])
    assert slow.advantage("theirs") == 0.25
    assert goal(slow, slow.targets[0]) == "at least 2 x"
    assert marks(slow, "theirs") == [("0.25 x, target at least 2 x", Verdict.MISS)]


def test_targets_and_units_decide_what_is_better() -> None:
    measured = of(Pretender("a", [], []).contender)
    assert measured.prefers_higher
    assert not replace(measured, unit="s").prefers_higher
    assert not replace(measured, targets=(Target("at most", 1),)).prefers_higher
    assert replace(measured, unit="%", higher_is_better=True).prefers_higher


def test_a_reference_is_shown_and_not_compared() -> None:
    ours, bound = Pretender("ours", [8], []), replace(Pretender("no gateway", [9], []).contender, reference=True)
    measured = measure(of(ours.contender, bound), rounds=1)
    assert measured.samples["no gateway"] == [9]
    assert measured.peers() == []
    assert marks(measured, "no gateway") == []


@pytest.mark.slow
def test_samples_are_kept_if_a_contender_cannot_be_closed(capsys: pytest.CaptureFixture[str]) -> None:
    @contextmanager
    def opened(_: int) -> Iterator[Run]:
        yield lambda: 1.0
        raise OSError("still in use")

    assert measure(of(Contender("a", opened)), rounds=2).samples == {"a": [1.0, 1.0]}
    assert "still in use" in capsys.readouterr().err


def test_the_page_shows_hits_and_misses_alike() -> None:
    made = result(
        targets=[Target("at least", 5, "theirs"), Target("at most", 20)], absent={"ray": "not\ninstalled | here"}
    )
    page = Page([replace(report(made), code="abc1234")])
    text = page.results()
    assert "- a CPU, 2 cores, 8 GB, Linux" in text
    assert "code of commit abc1234; medians of 3 rounds; 1 measurements" in text
    assert "### Tasks" in text
    assert "![Plot of the results: tasks](images/benchmarks_tasks.svg)" in text
    assert "| Speed<br>`speed` | ours | 12 tasks/s | 10 to 50 |  | at most 20 tasks/s: pass |" in text
    assert "|  | theirs | 3 tasks/s | 2 to 4 | 4 x | at least 5 x: **miss** |" in text
    assert "|  | ray | - | not installed \\| here |  |  |" in text
    assert "Targets: 1 pass, 1 miss, 0 not measured." in page.summary()
    assert "- Tasks, Speed: 4 x (theirs), target at least 5 x" in page.summary()


def test_the_summary_has_a_row_for_each_headline_and_names_better_peers() -> None:
    known = {measurement.name: measurement for measurement in measurements()}
    made = []
    for name, peer in HEADLINES:
        measurement = known[name]
        subject = measurement.contenders[0].name
        assert peer in [contender.name for contender in measurement.contenders]
        made.append(
            Result(
                name,
                "?",
                measurement.unit,
                subject,
                1,
                {subject: [1.0], peer: [4.0]},
                title=measurement.title,
                group=measurement.group,
            )
        )
    summary = Page([report(*made)]).summary()
    assert summary.count("**0.25 x**") == len(HEADLINES)
    assert "- Machines, Reset of a desktop: a boot per lease, 4 times" in summary


def test_results_of_several_runs_are_in_the_order_of_the_page_and_say_so() -> None:
    late = replace(report(result(name="size")), taken="2026-01-02")
    early = replace(report(result(name="speed")), taken="2026-01-01")
    text = Page([late, early], order=["speed", "height", "size"]).results()
    assert "Not measured: height." in text
    assert "from 2 runs of the same code" in text
    assert text.index("`speed`") < text.index("`size`")
    assert "1 measurements in 0 minutes: size" in text


def test_only_runs_of_the_same_code_and_host_are_combined() -> None:
    base = replace(report(result()), code="abc")
    others = [
        replace(base, quick=True),
        replace(base, code="def"),
        replace(base, machine=replace(MACHINE, cpu="another CPU")),
    ]
    assert same_state([base, *others], "abc", MACHINE) == [base]


def test_an_interrupted_run_keeps_what_it_measured_and_can_be_completed(tmp_path: Path) -> None:
    def stop() -> float:
        raise KeyboardInterrupt

    stopped = Pretender("b", [], [])
    stopped.run = stop  # type: ignore[method-assign]
    chosen = [of(Pretender("a", [1, 2], []).contender), replace(of(stopped.contender), name="size")]
    assert run(chosen, replace(report(), rounds=2), tmp_path) == 130
    [kept] = [from_json(path.read_text()) for path in tmp_path.glob("run-*.json")]
    assert [(made.name, made.samples) for made in kept.results] == [("speed", {"a": [1, 2]})]
    assert measured([kept]) == {"speed"}


@pytest.mark.slow
def test_a_run_fails_if_a_contender_failed_and_measures_it_again_when_it_is_completed(tmp_path: Path) -> None:
    assert run([of(Pretender("a", [1], []).contender)], report(), tmp_path) == 1
    kept = from_json((tmp_path / "results.json").read_text())
    assert measured([kept]) == set()
    assert run([of(Pretender("a", [1, 2, 3], []).contender)], report(), tmp_path) == 0


def test_a_part_of_a_page_is_replaced_between_its_marks() -> None:
    page = "a\n<!-- results: begin -->\nold\n<!-- results: end -->\nb\n"
    assert replaced(page, "results", "new\n") == page.replace("old", "new")
    assert replaced(page, "summary", "new\n") is None


def test_docs_writes_the_page_the_plots_and_the_short_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, images = tmp_path / "out", tmp_path / "docs" / "images"
    out.mkdir()
    images.mkdir(parents=True)
    assert write_documents(out, tmp_path) == 2
    assert "run 'make bench' first" in capsys.readouterr().err
    made = report(result(name="trivial-tasks", samples={"ours": [12.0], "ProcessPoolExecutor": [3.0]}))
    (out / "run-1.json").write_text(to_json(made))
    marked = "".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in ("summary", "results"))
    (tmp_path / "docs" / "benchmarks.md").write_text("no marks")
    assert write_documents(out, tmp_path) == 2
    assert "summary: begin" in capsys.readouterr().err
    (tmp_path / "docs" / "benchmarks.md").write_text(marked)
    (tmp_path / "README.md").write_text("<!-- benchmarks: begin -->\n<!-- benchmarks: end -->\n")
    assert write_documents(out, tmp_path) == 0
    page = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert "images/benchmarks_summary.svg" in page
    assert "`trivial-tasks`" in page
    assert (
        "| Speed | 12 tasks/s | ProcessPoolExecutor: 3 tasks/s | **4 x** |  |" in (tmp_path / "README.md").read_text()
    )
    assert sorted(path.name for path in images.iterdir()) == ["benchmarks_summary.svg", "benchmarks_tasks.svg"]


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


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_plot_has_the_values_of_all_peers_and_names_misses() -> None:
    made = result(targets=[Target("at least", 5, "theirs"), Target("at most", 20)])
    words = texts(draw_group("Tasks & more", [made, result(name="size", title="Size")]))
    assert words[0] == "Tasks & more (peer: theirs)"
    assert words.count("4 x") == 2
    assert words.count("3 tasks/s") == 2
    assert "12 tasks/s" in words
    assert "at most 20" in words
    assert words.count("miss") == 1
    several = result(samples={"ours": [1.0], "theirs": [4.0], "others": [100.0]})
    assert {"theirs", "others", "0.25 x", "0.01 x", "0.1 x"} <= set(texts(draw_group("Tasks", [several])))


def test_ratios_near_one_have_a_linear_axis() -> None:
    close = result(samples={"ours": [9.0], "theirs": [10.0]})
    assert {"0", "0.5 x", "1 x"} <= set(texts(draw_comparisons("Close", [(close, "theirs")])))


def test_a_value_of_zero_has_no_ratio_and_can_be_drawn() -> None:
    idle = result(samples={"ours": [0.0], "theirs": [3.0]}, prefers_higher=False, targets=[Target("at most", 1)])
    assert idle.advantage("theirs") is None
    assert marks(idle, "ours") == [("target at most 1 tasks/s", Verdict.PASS)]
    assert "0 tasks/s" in texts(draw_group("Machines", [idle]))
    none = result(samples={"ours": [0.0]}, targets=[Target("at least", 1)])
    assert "miss" in texts(draw_group("Machines", [none]))


def test_nothing_is_drawn_without_peers_and_targets() -> None:
    alone = result(samples={"ours": [1.0]})
    assert draw_group("Tasks", [alone]) == ""
    assert draw_comparisons("Tasks", [(alone, "theirs")]) == ""


def test_the_table_can_be_printed() -> None:
    made = report(result(targets=[Target("at least", 5, "theirs"), Target("at most", 20)]))
    console = Console(width=150)
    with console.capture() as captured:
        console.print(as_table(made))
    assert "4 x, target at least 5 x  miss" in captured.get()


def test_the_description_says_that_the_host_was_busy() -> None:
    assert not MACHINE.was_busy
    assert Machine("c", 2, 8.0, "L", "P", {}, load_before=1.5).lines()[-1].endswith("only ratios are reliable")


def test_amounts() -> None:
    assert [amount(v) for v in (70123.4, 12.34, 0.1234, None)] == ["70,123", "12.3", "0.123", "-"]


def test_spans_that_touch_do_not_overlap() -> None:
    assert most_at_once([(0, 1), (1, 2)]) == 1
    assert most_at_once([(0, 2), (1, 3), (1.5, 1.6)]) == 3
    assert most_at_once([]) == 0


def test_the_state_of_the_code_names_a_commit() -> None:
    assert code_state().partition("+")[0].isalnum()


def test_a_peer_without_an_environment_names_the_command_that_creates_it() -> None:
    with pytest.raises(RuntimeError, match=r"python -m bench\.peers nobody"):
        peer_program("nobody")


def test_every_measurement_has_a_name_of_its_own_and_targets_about_its_contenders() -> None:
    for measurement in measurements():
        assert measurement.group in GROUPS
        assert measurement.title
        names = {contender.name for contender in measurement.contenders}
        assert {target.times for target in measurement.targets} <= names | {""}


def test_a_misspelt_measurement_is_refused_with_the_names() -> None:
    with pytest.raises(KeyError, match="trivial-tasks"):
        measurements(["carying"])


def test_the_page_names_existing_measurements_peers_and_files() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for names in re.findall(r"bench --only (\S+)", page):
        assert measurements(names.split(","))
    for name in re.findall(r"bench\.peers (\w+)\n", page):
        assert name in PEERS
    for peer in PEERS.values():
        version = peer.requirements[0].partition("==")[2]
        assert f" {version}, environment" in page
    for path in re.findall(r"`(bench/[\w/]+\.py)`", page):
        assert (ROOT / path).is_file(), path
