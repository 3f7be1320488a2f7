"""`paragent rollout --detach`: starts the session in a process of its own and waits until it executes rollouts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paragent.rollout.live_status import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.rollout.live_status import RolloutProgress

__all__ = ["LOG_FILE", "DetachedStart", "start_detached"]

LOG_FILE = "session.log"


def start_detached(arguments: Sequence[str]) -> int:
    """Start `paragent` with these arguments in the background; return the exit status of this command.

    The process has a session of its own, so that it survives the end of the terminal. If it ends before it executes rollouts, its
    output is printed and its exit status is returned.
    """
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+") as output, os.fdopen(reading) as report:
        command = [sys.executable, "-m", "paragent", *arguments, "--detached", str(writing)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[writing], start_new_session=True
        )
        os.close(writing)
        try:
            started = report.read()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
        if not started:
            return _print_failure(process, output)
    _print_started(json.loads(started), process.pid)
    return 0


def _print_failure(process: subprocess.Popen[bytes], output: IO[str]) -> int:
    status = process.wait()
    output.seek(0)
    sys.stderr.write(output.read())
    return status if status >= 0 else 1


def _print_started(started: dict[str, Any], pid: int) -> None:
    run = shlex.quote(started["path"])
    print(
        f"{started['run']} runs in the background as process {pid}.\n"
        f"watch it:  paragent ctl {run} status\n"
        f"           paragent view {run}\n"
        f"           tail -f {shlex.quote(str(Path(started['path']) / LOG_FILE))}\n"
        f"stop it:   paragent ctl {run} stop"
    )


class DetachedStart:
    """The start of a session in the background: an observer of its progress.

    When rollouts are executed, the output goes to `session.log` in the run directory, and the command that started the process
    is told so. Until then the run directory may still be removed, because machines cannot be started.

    Args:
        descriptor: where to write that the run has started.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        os.set_inheritable(descriptor, False)

    def __call__(self, progress: RolloutProgress) -> None:
        if self._descriptor is None or progress.state is RunState.STARTING or progress.state.ended:
            return
        descriptor, self._descriptor = self._descriptor, None
        sys.stdout.flush()
        sys.stderr.flush()
        log = os.open(progress.path / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        os.write(descriptor, json.dumps({"run": progress.run, "path": str(progress.path)}).encode())
        os.close(descriptor)
