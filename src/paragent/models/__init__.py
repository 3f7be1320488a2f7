"""Models: one interface, a client for OpenAI-compatible endpoints, and a scripted policy for trying things out."""

from paragent.models.base import Completion, Model, ModelSettings, open_model

__all__ = ["Completion", "Model", "ModelSettings", "open_model"]
