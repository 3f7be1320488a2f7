"""Where attempts run: one contract, one file or folder per implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.engines.base import Call, RuntimeEngine
    from paragent.engines.registry import ENGINES, open_engine

__all__ = ["ENGINES", "Call", "RuntimeEngine", "open_engine"]

__getattr__ = names_from(__name__, {"base": ("Call", "RuntimeEngine"), "registry": ("ENGINES", "open_engine")})
