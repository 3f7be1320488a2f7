"""Programs that run once: limits that the parent enforces, on the host and in the sandbox."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from paragent.subprocesses import ProcessLimits
from paragent.subprocesses.bubblewrap import SandboxFiles
from paragent.subprocesses.program import ProgramReport, ProgramSpec, start_in_sandbox, start_on_host
from paragent.subprocesses.program_main import Capture

HOARD = (
    "import time\nprint('begin', flush=True)\nhoard = []\nwhile True: hoard.append(b'x' * (8 << 20)); time.sleep(0.01)"
)
FORKS = "import os, time\nprint('begin', flush=True)\nfor _ in range(40): os.fork() or time.sleep(600)\ntime.sleep(600)"


def run(code: str, folder: Path, limits: ProcessLimits, *, sandbox: bool) -> ProgramReport:
    async def scenario() -> ProgramReport:
        spec = ProgramSpec(
            command=[sys.executable, "-c", code],
            environment={"PATH": "/usr/bin:/bin"},
            folder="/tmp" if sandbox else str(folder),
            answer="/tmp/answer" if sandbox else str(folder / "answer"),
        )
        if sandbox:
            running = await start_in_sandbox(spec, SandboxFiles(), user="a test", advice="install it", limits=limits)
        else:
            running = await start_on_host(spec, limits)
        try:
            return await running.wait()
        finally:
            await running.close()

    return asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", [True, False])
def test_memory_is_limited(tmp_path: Path, sandbox: bool) -> None:
    report = run(HOARD, tmp_path, ProcessLimits(memory=200 << 20), sandbox=sandbox)
    assert report.problem == "was stopped: it used more than 200 MiB of memory"
    assert report.stdout == "begin\n"


@pytest.mark.slow
def test_processes_are_limited(tmp_path: Path) -> None:
    report = run(FORKS, tmp_path, ProcessLimits(processes=20), sandbox=False)
    assert report.problem == "was stopped: it had more than 20 processes"
    report = run(FORKS, tmp_path, ProcessLimits(processes=20), sandbox=True)
    assert report.exit_code == 1
    assert "BlockingIOError" in report.stderr


def test_a_program_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    async def scenario(command: list[str]) -> ProgramReport:
        spec = ProgramSpec(command=command, environment={}, folder=str(tmp_path), answer=str(tmp_path / "answer"))
        running = await start_on_host(spec)
        try:
            return await running.wait()
        finally:
            await running.close()

    report = asyncio.run(scenario(["/nowhere/at-all"]))
    assert report.problem == "could not be started: /nowhere/at-all: No such file or directory"


def test_the_middle_of_a_long_stream_is_omitted() -> None:
    capture = Capture(10)
    for piece in (b"ab", b"cdefg", b"hijkl", b"mnopq"):
        capture.add(piece)
    assert (capture.omitted, capture.text()) == (7, "abcde\n... 7 bytes omitted ...\nmnopq")
    short = Capture(10)
    short.add("12345ä78".encode())
    assert (short.omitted, short.text()) == (0, "12345ä78"), "a character is not split where the halves meet"
