"""Tasks in, responses out: the door for people who come with a list of tasks."""

from manyhands.runners.progress import Progress
from manyhands.runners.runners import Runners, exec_tasks

__all__ = ["Progress", "Runners", "exec_tasks"]
