"""Processes that tests start."""

from __future__ import annotations

import os
import signal
import subprocess
from types import TracebackType
from typing import AnyStr

import psutil

from tests.waiting import wait_until

END_SECONDS = 60.0
"""Seconds for a child, which was told to end or has nothing left to do. On a busy machine an end took ten."""


class BoundedPopen(subprocess.Popen[AnyStr]):
    """A process that has ended after its `with` block, which `Popen` does not promise: it waits without a limit.

    It is killed at once if the block raises (also the time limit of the test), and if it does not end within a minute
    after the block, which is then an error.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        try:
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    stream.close()
        finally:
            try:
                self.wait(END_SECONDS)
            except BaseException:
                self.kill()
                self.wait(END_SECONDS)
                raise


def freeze(pid: int) -> None:
    """Stop a process with all its threads; returning from `kill` alone does not mean that none runs any more."""
    os.kill(pid, signal.SIGSTOP)
    threads = [psutil.Process(thread.id) for thread in psutil.Process(pid).threads()]
    wait_until(lambda: all(thread.status() == psutil.STATUS_STOPPED for thread in threads))
