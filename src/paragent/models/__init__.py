"""Models: one interface, a client for OpenAI-compatible endpoints, and the rate limit that all workers of a run share."""

from paragent.models.base import Completion, Model, ModelSettings, Sampling, open_model

__all__ = ["Completion", "Model", "ModelSettings", "Sampling", "open_model"]
