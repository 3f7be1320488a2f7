"""Programs that run once: limits that the parent enforces, on the host and in the sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent.subprocesses import ProcessLimits, program_main
from paragent.subprocesses.bubblewrap import SandboxFiles
from paragent.subprocesses.program import ProgramReport, ProgramSpec, RunningProgram, start_in_sandbox, start_on_host
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

    report = asyncio.run(asyncio.wait_for(scenario(["/nowhere/at-all"]), 60))
    assert report.problem == "could not be started: /nowhere/at-all: No such file or directory"


def test_the_middle_of_a_long_stream_is_omitted() -> None:
    capture = Capture(10)
    for piece in (b"ab", b"cdefg", b"hijkl", b"mnopq"):
        capture.add(piece)
    assert (capture.omitted, capture.text()) == (7, "abcde\n... 7 bytes omitted ...\nmnopq")
    short = Capture(10)
    short.add("12345ä78".encode())
    assert (short.omitted, short.text()) == (0, "12345ä78"), "a character is not split where the halves meet"


# --- the process that runs the program --------------------------------------------------------------------------------

INTRUDER = """
import os
for stream in (0, 1):
    try:
        with open(f"/proc/{os.getppid()}/fd/{stream}", "w") as file:
            file.write("garbage")
        print("written")
    except OSError as error:
        print(error.strerror)
"""


PARENT = """
import json, subprocess, sys
python, main, settings, lines = sys.argv[1:]
pipe = subprocess.PIPE
process = subprocess.Popen([python, "-I", main], stdin=pipe, stdout=pipe, text=True)
process.stdin.write(settings + "\\n" + lines)
process.stdin.flush()
print(process.stdout.read())
"""


def run_main(code: str, lines: str, folder: Path) -> dict[str, Any]:
    """Run `program_main` for an ordinary user, with a program that is Python code; send it lines and return its report."""
    main = folder / "main.py"
    main.write_text(Path(program_main.__file__).read_text())
    folder.chmod(0o755)
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.getuid() == 0 else []
    python = "/usr/bin/python3" if user else sys.executable  # an ordinary user may not see the environment of root
    settings: dict[str, Any] = {
        "command": [python, "-c", code],
        "environment": {"PATH": "/usr/bin:/bin"},
        "folder": "/",
        "stdin": "",
    }
    settings |= {"output": 1000, "answer": f"{folder}/answer", "answer_bytes": 10}
    command = [*user, python, "-c", PARENT, python, str(main), json.dumps(settings), lines]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd="/", timeout=30, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_program_cannot_write_to_the_streams_of_the_process_that_runs_it(public_folder: Path) -> None:
    report = run_main(INTRUDER, "", public_folder)
    assert (report["exit_code"], report["stdout"]) == (0, "Permission denied\nPermission denied\n")


def test_lines_that_are_not_orders_are_ignored(public_folder: Path) -> None:
    orders = 'garbage\n[]\n{"stop": null}\n{}\n{"stop": 0}\n'
    assert run_main("import time; time.sleep(600)", orders, public_folder)["exit_code"] == -signal.SIGKILL


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a folder that other users can read."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class GarbageChannel:
    """A connection to a `program_main` that does not send a report."""

    def __init__(self, *sent: bytes) -> None:
        self._sent = [*sent, b""]

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        return self._sent.pop(0)

    async def problem(self) -> str:
        return "was killed from outside"

    def overrun(self) -> str | None:
        return None

    async def close(self) -> None: ...


@pytest.mark.parametrize(("sent", "killed"), [((b"garbage\n", b'{"exit_code": 0}'), False), ((), True)])
def test_a_report_that_is_not_one_is_the_programs_failure(sent: tuple[bytes, ...], killed: bool) -> None:
    async def scenario() -> ProgramReport:
        running = RunningProgram(GarbageChannel(*sent))
        await running.start(ProgramSpec(command=["true"], environment={}, folder="/", answer="/answer"))
        try:
            return await running.wait()
        finally:
            await running.close()

    report = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert (report.exit_code, report.killed) == (None, killed)
    assert report.problem
