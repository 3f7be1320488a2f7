"""The local engine: worker processes on this host."""

from __future__ import annotations

from paragent.engines._process_pool import ProcessPoolRuntime
from paragent.engines._scheduler import max_held
from paragent.engines._worker_handle import ProcessHandle, WorkerHandle, WorkerSettings

__all__ = ["LocalRuntime"]


class LocalRuntime(ProcessPoolRuntime):
    """Runs every call in one of a fixed number of processes, which start when they are needed and are reused.

    The processes are fresh interpreters, not forks: they inherit no lock, thread or open connection of the program, and the
    program needs no `if __name__ == "__main__"`.
    """

    def start_workers(self, count: int) -> list[WorkerHandle]:
        """Start `count` processes."""
        return [ProcessHandle(self.worker_settings()) for _ in range(count)]

    def worker_settings(self) -> WorkerSettings:
        """Return the settings with which every worker starts; a subclass may change the command."""
        limits = self.limits
        return WorkerSettings(
            sync_limit=limits.sync,
            async_limit=limits.asynchronous,
            shared_limit=limits.shared,
            slots=max_held(limits.sync) + max_held(limits.asynchronous),
        )
