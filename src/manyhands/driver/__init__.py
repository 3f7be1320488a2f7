"""The driver: what is owed goes to an engine, exactly one settlement comes back for each."""

from manyhands.driver.driver import Driver
from manyhands.driver.records import Owed, Settlement

__all__ = ["Driver", "Owed", "Settlement"]
