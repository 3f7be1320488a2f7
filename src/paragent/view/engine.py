"""The engine of a run: its workers, from their events in the journal, from the results and from the live session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent.engines.base import lost_calls
from paragent.view.api import EngineDetail, EngineWorker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paragent.store import Journal
    from paragent.view.runs import StoredRun

__all__ = ["engine_detail"]

_EVENTS = 200
_WORKERS = 1_000
"""Workers in the list, the newest ones: each session has workers of its own."""


def engine_detail(run: StoredRun) -> EngineDetail:
    """Return the workers of a run.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    live = run.live()
    with run.open() as journal:
        workers = _from_results(journal)
        _add_events(workers, journal)
        restarts = _restarts(event for (event,) in journal.rows("SELECT event FROM worker_events ORDER BY number"))
        lost = sum(worker.lost for worker in workers.values())
        events = journal.rows(
            f"SELECT at, worker, event, detail FROM worker_events ORDER BY number DESC LIMIT {_EVENTS}"  # noqa: S608 - a constant
        )
    for known in live.workers if live else ():
        worker = workers.setdefault(known.name, EngineWorker(known.name, "ready", 0.0, 0, known.done, known.lost))
        worker.active = known.rollouts
        if worker.state in {"started", ""}:
            worker.state = "ready"
    for worker in workers.values():
        if not worker.state or (live is None and worker.state in {"started", "ready"}):
            worker.state = "stopped"
    newest = sorted(workers.values(), key=lambda worker: (worker.active > 0, worker.since), reverse=True)
    return EngineDetail(
        engine=str(run.config().get("engine") or ""),
        live=live is not None,
        workers=newest[:_WORKERS],
        restarts=restarts,
        lost=lost,
        events=[(at, worker, event, detail) for at, worker, event, detail in events],
    )


def _from_results(journal: Journal) -> dict[str, EngineWorker]:
    """Return the workers that have results; their state is not known yet, and they exist since their first execution."""
    rows = journal.rows(
        "SELECT worker, count(*), sum(kind = 'worker'), min(CASE WHEN started > 0 THEN started ELSE ended END) "
        "FROM results WHERE worker != '' GROUP BY worker"
    )
    return {name: EngineWorker(name, "", since, 0, count - lost, lost) for name, count, lost, since in rows}


def _add_events(workers: dict[str, EngineWorker], journal: Journal) -> None:
    rows = journal.rows(
        "SELECT worker, event, at, detail FROM worker_events "
        "WHERE number IN (SELECT max(number) FROM worker_events WHERE worker != '' GROUP BY worker)"
    )
    for name, event, at, detail in rows:
        worker = workers.setdefault(name, EngineWorker(name, "", at, 0, 0, 0))
        worker.state, worker.since = event, at
        # A lost execution has a result only if it had used something, or was not retried.
        worker.lost = max(worker.lost, lost_calls(detail) if event == "lost" else 0)


def _restarts(events: Iterable[str]) -> int:
    """Return how many workers were started in place of lost ones."""
    lost = restarts = 0
    for event in events:
        if event == "lost":
            lost += 1
        elif event == "started" and lost:
            lost -= 1
            restarts += 1
    return restarts
