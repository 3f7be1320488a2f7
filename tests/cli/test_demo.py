"""`paragent demo`: its parts, what it prints about parts that cannot run, and the pages of `--view`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paragent.cli import main
from tests.children import BoundedPopen

SMALL = ["demo", "--tasks", "3", "--workers", "1", "--no-desktops"]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_part_that_cannot_run_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without bwrap and chromium
    assert main(SMALL) == 0
    shown = capsys.readouterr().out
    assert "py: bubblewrap (bwrap) is not installed; install the package bubblewrap\n" in shown
    assert "install the package chromium\n" in shown
    assert "math-t0.8" in shown
    assert "sample tasks of the environments rag. " in " ".join(shown.split())
    assert (tmp_path / "results" / "demo" / "rag" / "summary.json").exists()


@pytest.mark.slow
def test_the_pages_are_served_until_ctrl_c() -> None:
    remote = {"SSH_CONNECTION": "192.0.2.7 50000 192.0.2.1 22", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    command = [sys.executable, "-m", "paragent", *SMALL, "--no-rollouts", "--view"]
    with BoundedPopen(command, env={**os.environ, **remote}, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        shown = ""
        while "until Ctrl-C" not in shown and (line := demo.stdout.readline()):
            shown += line
        demo.send_signal(signal.SIGINT)
    assert demo.returncode == 0
    assert "  http://127.0.0.1:" in shown
    assert "On your own computer, first: ssh -N -L " in shown
    assert "192.0.2.1\n" in shown
