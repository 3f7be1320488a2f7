"""The command line: the only room that prints."""

from paragent.cli.main import main

__all__ = ["main"]
