"""Contract suites for people who write their own parts, and for ourselves."""

from manyhands.testing.engine_contract import EngineContract, IsolationContract
from manyhands.testing.environment_contract import EnvironmentContract

__all__ = ["EngineContract", "EnvironmentContract", "IsolationContract"]
