"""Runners: execute tasks on any engine, with one response for each task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.runners.api import Runners, exec_tasks
    from paragent.runners.progress import Progress

__all__ = ["Progress", "Runners", "exec_tasks"]

__getattr__ = names_from(__name__, {"progress": ("Progress",), "api": ("Runners", "exec_tasks")})
