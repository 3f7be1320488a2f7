"""Worker processes on this machine."""

from __future__ import annotations

from paragent.engines._process_pool import Member, PooledRuntime
from paragent.engines._scheduler import Pace
from paragent.engines._worker_handle import Supervisor, WorkerSettings

__all__ = ["LocalRuntime"]


class LocalRuntime(PooledRuntime):
    """Runs every attempt in one of a fixed number of processes, which are started when needed and reused.

    Processes are fresh interpreters, not forks: no lock, thread or open connection of the program gets into them, and the
    program needs no `if __name__ == "__main__"`.
    """

    def recruit(self, missing: int) -> list[Member]:
        """Start `missing` processes."""
        return [Supervisor(self.worker_settings()) for _ in range(missing)]

    def worker_settings(self) -> WorkerSettings:
        """Return what every worker is started with; a subclass may change the command."""
        limits = self.limits
        return WorkerSettings(
            sync_limit=limits.sync,
            async_limit=limits.asynchronous,
            shared_limit=limits.shared,
            slots=Pace.most(limits.sync) + Pace.most(limits.asynchronous),
        )
