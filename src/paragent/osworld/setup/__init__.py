"""What is done in a guest before an attempt begins, and by evaluators before they look."""

from __future__ import annotations

from paragent.osworld.setup.steps import STEPS, lacking, set_up

__all__ = ["STEPS", "lacking", "set_up"]
