"""Objects that live on other servers: message, reference, proxy; servers; child processes.

Everything is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._lazy import names_from

if TYPE_CHECKING:
    from paragent.remote.concurrency import concurrent
    from paragent.remote.dist import DistConf

__all__ = ["DistConf", "concurrent"]

__getattr__ = names_from(__name__, {"concurrency": ("concurrent",), "dist": ("DistConf",)})
