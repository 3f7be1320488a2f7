"""The supervisor of an MCP server's program: nothing that the program started remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paragent.subprocesses import supervisor
from paragent.testing.programs import alive, pids_in
from tests.children import BoundedPopen
from tests.waiting import wait_until

STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()}\\n{child.pid}\\n")
time.sleep(1000)
"""


@pytest.mark.slow
def test_many_signals_at_once_leave_no_process(tmp_path: Path) -> None:
    """The kernel sends the signal once for each thread of a parent that was killed."""
    for number in range(5):
        noted = tmp_path / f"pids-{number}"
        command = [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid())]
        command += [sys.executable, "-I", "-S", "-c", STUBBORN, str(noted)]
        with BoundedPopen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            wait_until(lambda noted=noted: len(pids_in(noted)) == 2)  # type: ignore[misc]
            while process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda noted=noted: not any(map(alive, pids_in(noted))), 10)  # type: ignore[misc]
