"""Remote agents: the client side, agent servers, and child processes that serve agents.

Modules are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.remote.methods import concurrent
    from paragent.remote.placement import DistConf

__all__ = ["DistConf", "concurrent"]

__getattr__ = names_from(__name__, {"methods": ("concurrent",), "placement": ("DistConf",)})
