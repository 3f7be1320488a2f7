"""The command line: the only room that prints."""

from manyhands.cli.main import main

__all__ = ["main"]
