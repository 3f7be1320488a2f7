"""The driver: what is owed goes to an engine, exactly one settlement comes back for each."""

from paragent.driver.driver import Driver
from paragent.driver.records import Owed, Settlement

__all__ = ["Driver", "Owed", "Settlement"]
