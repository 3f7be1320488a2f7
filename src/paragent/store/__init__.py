"""What a run leaves behind: one directory, one journal, one row for each play of a rollout."""

from paragent.store.directory import RunDirectory, find_runs, images_folder
from paragent.store.journal import Journal
from paragent.store.records import OwedRollout, RolloutResult, RolloutStatus, StoredTask
from paragent.store.summary import MACHINES, PRICES, Summary, final_failures, summarise

__all__ = [
    "MACHINES",
    "PRICES",
    "Journal",
    "OwedRollout",
    "RolloutResult",
    "RolloutStatus",
    "RunDirectory",
    "StoredTask",
    "Summary",
    "final_failures",
    "find_runs",
    "images_folder",
    "summarise",
]
