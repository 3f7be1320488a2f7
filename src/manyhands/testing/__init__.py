"""Contract suites for people who write their own parts, and for ourselves."""

from manyhands.testing.engine_contract import EngineContract, IsolationContract

__all__ = ["EngineContract", "IsolationContract"]
