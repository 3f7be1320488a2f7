"""Run directories: the journal with tasks and results, files made from it, statistics, exports."""

from paragent.store.activity import ActivityInterval, RolloutActivity, pack_activity, unpack_activity
from paragent.store.comparison import Comparison, compare, match_tasks, task_scores, unscored_tasks
from paragent.store.directory import JOURNAL_FILE, RunDirectory, find_folders, find_runs, images_folder
from paragent.store.groups import AttemptResult, GroupState, GroupStore, StoredGroup
from paragent.store.journal import Journal, add_note, change_note
from paragent.store.records import (
    MachineEvent,
    NewScore,
    Note,
    PendingRollout,
    RolloutResult,
    RolloutStatus,
    WorkerEvent,
    unpack_trajectory,
)
from paragent.store.summary import ATTEMPTS, MACHINES, METRIC, PRICES, Summary, final_failures, summarise

__all__ = [
    "ATTEMPTS",
    "JOURNAL_FILE",
    "MACHINES",
    "METRIC",
    "PRICES",
    "ActivityInterval",
    "AttemptResult",
    "Comparison",
    "GroupState",
    "GroupStore",
    "Journal",
    "MachineEvent",
    "NewScore",
    "Note",
    "PendingRollout",
    "RolloutActivity",
    "RolloutResult",
    "RolloutStatus",
    "RunDirectory",
    "StoredGroup",
    "Summary",
    "WorkerEvent",
    "add_note",
    "change_note",
    "compare",
    "final_failures",
    "find_folders",
    "find_runs",
    "images_folder",
    "match_tasks",
    "pack_activity",
    "summarise",
    "task_scores",
    "unpack_activity",
    "unpack_trajectory",
    "unscored_tasks",
]
