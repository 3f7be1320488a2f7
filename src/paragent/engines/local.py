"""The local engine: worker processes on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent.engines._process_pool import ProcessPoolRuntime
from paragent.engines._scheduler import max_held
from paragent.engines._worker_handle import ProcessHandle, WorkerHandle, WorkerSettings
from paragent.engines.base import require_no_cluster_settings

if TYPE_CHECKING:
    from paragent.config import RunConfig

__all__ = ["LocalRuntime", "WorkerSettings"]


class LocalRuntime(ProcessPoolRuntime):
    """Runs every call in one of a fixed number of processes, which start when they are needed and are reused.

    The processes are fresh interpreters, not forks: they inherit no lock, thread or open connection of the program, and the
    program needs no `if __name__ == "__main__"`.

    Raises:
        ConfigError: there are engine options, or `in_local` is False. A subclass may use both.
    """

    def __init__(self, config: RunConfig) -> None:
        if type(self) is LocalRuntime:
            require_no_cluster_settings("local", config)
        super().__init__(config)

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
