"""OSWorld's evaluators: getters say what is there, metrics say whether it is right, `evaluate` puts them together."""

from paragent.osworld.evaluators.evaluator import evaluate
from paragent.osworld.evaluators.registry import GETTERS, METRICS

__all__ = ["GETTERS", "METRICS", "evaluate"]
