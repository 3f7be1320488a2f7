"""The version of the installed package. Reading its metadata takes some milliseconds, so it is loaded when it is used."""

from __future__ import annotations

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("paragent")
"""The version of the installed package."""
