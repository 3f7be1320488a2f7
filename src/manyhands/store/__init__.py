"""What a run leaves behind: one directory, one journal, one row for each play of a rollout."""

from manyhands.store.directory import RunDirectory, find_runs, pictures_of
from manyhands.store.journal import Journal
from manyhands.store.records import OwedRollout, Play, PlayStatus, StoredTask
from manyhands.store.summary import MACHINES, PRICES, Summary, final_failures, summarise

__all__ = [
    "MACHINES",
    "PRICES",
    "Journal",
    "OwedRollout",
    "Play",
    "PlayStatus",
    "RunDirectory",
    "StoredTask",
    "Summary",
    "final_failures",
    "find_runs",
    "pictures_of",
    "summarise",
]
