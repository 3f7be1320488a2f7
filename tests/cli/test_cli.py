"""The command line: demo, help, version."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from paragent.cli import main


@pytest.mark.slow
def test_the_demo_shows_every_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--tasks", "60", "--workers", "2", "--no-rollouts", "--no-desktops"]) == 0
    shown = capsys.readouterr().out
    for word in ("60 responses", "succeeded", "failed", "timed out", "lost", "ValueError", "times as fast"):
        assert word in shown, shown


@pytest.mark.slow
def test_every_command_has_help() -> None:
    for arguments in (["--help"], ["demo", "-h"], ["rollout", "-h"], ["runs", "-h"], ["compare", "-h"]):
        done = subprocess.run(
            [sys.executable, "-m", "paragent", *arguments], capture_output=True, text=True, check=True
        )
        assert "usage: paragent" in done.stdout


@pytest.mark.parametrize("command", ["rollout", "show", "agent-server", "pool", "pool serve", "vm rm", "osworld check"])
def test_the_help_of_a_command_says_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    description = capsys.readouterr().out.split("\n\n")[1]
    assert re.fullmatch(r"[A-Z].*\.", description, re.DOTALL)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"paragent {version('paragent')}\n"


def test_a_missing_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
