"""The command line interface."""

from paragent.cli.main import main

__all__ = ["main"]
