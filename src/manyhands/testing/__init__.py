"""Contract suites for people who write their own parts, and for ourselves; a scripted model endpoint.

Names are loaded when they are first used: the endpoint is also a program that needs nothing of the suites.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.testing.engine_contract import EngineContract, IsolationContract
    from manyhands.testing.environment_contract import EnvironmentContract
    from manyhands.testing.openai_script import Fault, Script
    from manyhands.testing.openai_server import OpenAIServer

_HOME = {
    "EngineContract": "engine_contract",
    "EnvironmentContract": "environment_contract",
    "Fault": "openai_script",
    "IsolationContract": "engine_contract",
    "OpenAIServer": "openai_server",
    "Script": "openai_script",
}

__all__ = ["EngineContract", "EnvironmentContract", "Fault", "IsolationContract", "OpenAIServer", "Script"]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'manyhands.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"manyhands.testing.{module}"), name)
