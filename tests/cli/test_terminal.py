"""Texts of models, pages, guests and tasks cannot control the terminal."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paragent._internal.text import SafeStream, printable, safe_console, safe_streams, unwrapped
from paragent.cli import main
from paragent.cli.display import progress_line, progress_view
from paragent.cli.tables import console
from paragent.config import RunConfig
from paragent.rollout.live_status import LiveRollout, LiveStatus, RolloutProgress
from paragent.runners.progress import open_reporter
from paragent.store import RolloutResult, RolloutStatus
from tests.children import BoundedPopen
from tests.cli.test_runs import made_run

ATTACKS = {
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "title": "\x1b]0;owned\x1b\\",
    "title by C1": "\x9d0;owned\x9c",
    "clear": "\x1b[2J\x1b[H",
    "clear by C1": "\x9b2J",
    "cursor": "safe\x1b[1A\x1b[2Kforged",
    "carriage return": "real\rfake",
    "backspace": "real\x08\x08\x08\x08fake",
    "bidi override": "\u202egnp.exe\u202c",
    "bidi isolate": "\u2066x\u2069",
    "device control": "\x1bP$q\x1b\\",
    "nul and del": "a\x00b\x7fc",
    "line separator": "a\u2028b",
}
FORBIDDEN = {chr(code) for code in [*range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F)]}
FORBIDDEN |= {chr(code) for code in [*range(0x2066, 0x206A), 0x2028, 0x2029]}


def harmless(shown: str) -> bool:
    """Return whether a text has no control characters except styles (ESC [ ... m)."""
    return not FORBIDDEN & set(re.sub(r"\x1b\[[0-9;]*m", "", shown))


@pytest.mark.slow
@given(st.text() | st.text(st.sampled_from([*sorted(FORBIDDEN), "a", "\n", "\t", "\ud800"])))
def test_printable_removes_control_characters(text: str) -> None:
    cleaned = printable(text)
    assert not FORBIDDEN & set(cleaned)
    assert printable(cleaned) == cleaned
    assert cleaned.encode("utf-8").decode() == cleaned, "no lone surrogates are left"
    assert [one for one in cleaned if one in "\n\t"] == [one for one in text if one in "\n\t"]


def test_printable_keeps_ordinary_text() -> None:
    for text in ("plain", "two\nlines\tand a tab", "Grüße, 世界, שלום 👋🏽 é", "[bold]x[/]"):
        assert printable(text) == text


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_tables_and_live_displays_have_no_control_characters(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    shown = safe_console(force_terminal=True, width=120)
    table = Table(title=escape(attack))
    table.add_column(attack)
    table.add_row(escape(attack))
    progress = RolloutProgress(attack, Path("run"), 10, active=2)
    progress.count(RolloutResult(attack, 1, RolloutStatus.FAILED, kind=attack))
    progress.live = LiveStatus(1, 8, [LiveRollout(attack, attack, 2.0, None, 1.0)])
    progress.note = attack
    for one in (table, Text(attack, style="red"), escape(attack), progress_view(progress)):
        shown.print(one)
    assert "\x1b[" in screen.getvalue(), "styles are kept"
    assert harmless(screen.getvalue())
    assert "\n" not in progress_line(progress)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_output_next_to_a_progress_bar_has_no_control_characters(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", SafeStream(screen))
    monkeypatch.setattr(sys, "stdout", SafeStream(screen))
    reporter = open_reporter(RunConfig(job_name=attack, progress=True), 1)
    assert reporter is not None
    print(f"the model says {attack}!")
    reporter.close()
    moved = re.sub(r"\x1b\[(\?25[lh]|[0-9;]*[AKm])|\r", "", screen.getvalue())  # sequences of the live display itself
    assert "!" in moved, "the other text is shown"
    assert not FORBIDDEN & set(moved)


def attacked_run(folder: Path, attack: str) -> Path:
    result = RolloutResult(
        f"t{attack}", 1, RolloutStatus.FAILED, score=0.0, kind=f"k{attack}", error=f"e{attack}", answer=attack
    )
    result.ending = attack
    return made_run(folder, [result])


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_output_of_commands_has_no_control_characters(
    attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = attacked_run(tmp_path / "run", attack)
    assert main(["show", str(run)]) == 0
    assert main(["show", str(run), f"t{attack}"]) == 0
    assert main(["show", f"no such run {attack}"]) != 0
    said = capsys.readouterr()
    assert "failed" in said.out
    assert "no such run" in said.err
    assert harmless(said.out)
    assert harmless(said.err)


def test_tracebacks_have_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError(ATTACKS["clipboard"])

    monkeypatch.setattr("paragent.store.find_runs", fails)
    assert main(["runs"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError: ]52;c;" in said
    assert harmless(said)


def test_prints_and_logs_of_agents_have_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with safe_streams():
        assert isinstance(sys.stdout, SafeStream)
        with safe_streams():
            assert unwrapped(sys.stdout) is out
        print(*ATTACKS.values())
        sys.stderr.writelines(ATTACKS.values())
        record = logging.makeLogRecord({"msg": "the guest said %s", "args": (ATTACKS["title"],)})
        logging.StreamHandler().handle(record)
    assert sys.stdout is out
    assert harmless(out.getvalue())
    assert harmless(err.getvalue())
    assert "]0;owned" in err.getvalue(), "the text of the attack is shown"


def test_a_terminal_gets_colours_but_no_control_characters(tmp_path: Path) -> None:
    run = attacked_run(tmp_path / "run", ATTACKS["clipboard"] + ATTACKS["clear"] + ATTACKS["cursor"])
    near, far = pty.openpty()
    command = [sys.executable, "-m", "paragent", "show", str(run)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    with BoundedPopen(command, stdout=far, stderr=far, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(far)
        shown = _all(near)
    assert process.returncode == 0
    assert "\x1b[" in shown
    assert "52;c;" in shown
    assert harmless(shown.replace("\r\n", "\n"))


def _all(descriptor: int) -> str:
    said = b""
    try:
        while chunk := os.read(descriptor, 65536):
            said += chunk
    except OSError:  # the terminal's other end is closed
        pass
    finally:
        os.close(descriptor)
    return said.decode()


def test_the_console_writes_to_the_underlying_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen: Any = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with safe_streams():
        assert sys.stderr.isatty()
        console(stderr=True).print("[bold]run[/]")
    assert "\x1b[1mrun" in screen.getvalue()
