"""OSWorld's evaluators: getters read the state of a machine, metrics score it, and `evaluate` combines both."""

from paragent.osworld.evaluators.evaluator import evaluate
from paragent.osworld.evaluators.registry import GETTERS, METRICS

__all__ = ["GETTERS", "METRICS", "evaluate"]
