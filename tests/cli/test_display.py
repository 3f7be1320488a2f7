"""What people see of a run while it plays."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from paragent.cli.display import clock, line, picture
from paragent.rollout.live_status import Sighting, Tally
from paragent.rollout.machines import MachinesSeen
from paragent.store import RolloutResult, RolloutStatus


def tally() -> Tally:
    made = Tally("run", Path("run"), 10, under_way=2)
    made.count(RolloutResult("a", 1, RolloutStatus.COMPLETED, score=1.0, prompt_tokens=1200, completion_tokens=30))
    made.count(RolloutResult("b", 1, RolloutStatus.INFRASTRUCTURE, kind="endpoint"))
    made.count(RolloutResult("c", 1, RolloutStatus.INFRASTRUCTURE, kind="worker", decides=False))
    made.sighting = Sighting(3, 8, [("d", "retrying", 2.0, 45.0, 60.0), ("e", "waiting for machine", 5.0, None, 1.0)])
    made.machines = MachinesSeen(in_use=2, resetting=1, booting=0, total=3, waiting=1)
    return made


def test_the_live_picture_says_what_goes_on() -> None:
    console = Console(width=120, record=True, force_terminal=True)
    console.print(picture(tally()))
    shown = console.export_text()
    for words in (
        "1/10",
        "0.500",
        "requests 3 / 8",
        "machines 2 in use, 1 resetting / 3",
        "retrying in 0:45",
        "waiting for machine",
        "endpoint 1",
        "1,200 in",
        "again 1",
    ):
        assert words in shown, shown


def test_a_line_says_it_where_there_is_no_terminal() -> None:
    said = line(tally())
    for words in (
        "1 of 10 done",
        "2 under way (2 waiting: retrying in 0:45)",
        "score 0.500",
        "1 endpoint",
        "requests 3 / 8",
        "resetting / 3",
    ):
        assert words in said, said


def test_times() -> None:
    assert [clock(seconds) for seconds in (0.4, 45, 60, 3723)] == ["0:00", "0:45", "1:00", "1:02:03"]
