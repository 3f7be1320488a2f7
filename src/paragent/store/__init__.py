"""Run directories: the journal with tasks and results, files made from it, statistics, exports."""

from paragent.store.directory import JOURNAL_FILE, RunDirectory, find_runs, images_folder
from paragent.store.journal import Journal
from paragent.store.records import PendingRollout, RolloutResult, RolloutStatus
from paragent.store.summary import ATTEMPTS, MACHINES, PRICES, Comparison, Summary, compare, final_failures, summarise

__all__ = [
    "ATTEMPTS",
    "JOURNAL_FILE",
    "MACHINES",
    "PRICES",
    "Comparison",
    "Journal",
    "PendingRollout",
    "RolloutResult",
    "RolloutStatus",
    "RunDirectory",
    "Summary",
    "compare",
    "final_failures",
    "find_runs",
    "images_folder",
    "summarise",
]
