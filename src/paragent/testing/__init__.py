"""Contract suites for people who write their own parts, and for ourselves; a scripted model endpoint.

Names are loaded when they are first used: the endpoint is also a program that needs nothing of the suites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.testing.engine_contract import EngineContract, IsolationContract
    from paragent.testing.environment_contract import EnvironmentContract
    from paragent.testing.openai_server import Fault, OpenAIServer, Script
    from paragent.testing.provider_contract import ProviderContract

__all__ = [
    "EngineContract",
    "EnvironmentContract",
    "Fault",
    "IsolationContract",
    "OpenAIServer",
    "ProviderContract",
    "Script",
]

__getattr__ = names_from(
    __name__,
    {
        "engine_contract": ("EngineContract", "IsolationContract"),
        "environment_contract": ("EnvironmentContract",),
        "openai_server": ("Fault", "OpenAIServer", "Script"),
        "provider_contract": ("ProviderContract",),
    },
)
