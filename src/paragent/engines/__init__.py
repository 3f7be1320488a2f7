"""Engines: where attempts run. One contract (`base`), one module for each implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.engines.base import ENGINES, Call, RuntimeEngine, open_engine

__all__ = ["ENGINES", "Call", "RuntimeEngine", "open_engine"]

__getattr__ = names_from(__name__, {"base": ("ENGINES", "Call", "RuntimeEngine", "open_engine")})
