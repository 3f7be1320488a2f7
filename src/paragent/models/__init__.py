"""What agents talk to: one contract, an OpenAI-compatible endpoint, and a hand-written policy for trying things out."""

from paragent.models.base import Completion, Model, ModelSettings, open_model

__all__ = ["Completion", "Model", "ModelSettings", "open_model"]
