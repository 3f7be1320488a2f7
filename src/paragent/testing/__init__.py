"""Contract suites for engines, environments, export formats, models, providers and scorers, and a scripted model endpoint.

To test an implementation of your own, subclass a suite in a test file and name the implementation; pytest collects the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.testing.engine_contract import EngineContract, IsolationContract
    from paragent.testing.environment_contract import EnvironmentContract
    from paragent.testing.export_contract import ExportFormatContract
    from paragent.testing.model_contract import ModelContract
    from paragent.testing.openai_server import Fault, OpenAIServer, Script
    from paragent.testing.provider_contract import ProviderContract
    from paragent.testing.scorer_contract import ScorerContract

__all__ = [
    "EngineContract",
    "EnvironmentContract",
    "ExportFormatContract",
    "Fault",
    "IsolationContract",
    "ModelContract",
    "OpenAIServer",
    "ProviderContract",
    "ScorerContract",
    "Script",
]

__getattr__ = names_from(
    __name__,
    {
        "engine_contract": ("EngineContract", "IsolationContract"),
        "environment_contract": ("EnvironmentContract",),
        "export_contract": ("ExportFormatContract",),
        "model_contract": ("ModelContract",),
        "openai_server": ("Fault", "OpenAIServer", "Script"),
        "provider_contract": ("ProviderContract",),
        "scorer_contract": ("ScorerContract",),
    },
)
