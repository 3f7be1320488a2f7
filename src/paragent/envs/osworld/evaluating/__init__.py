"""OSWorld's evaluators: getters say what is there, metrics say whether it is right, `evaluate` puts them together."""

from paragent.envs.osworld.evaluating.evaluator import evaluate
from paragent.envs.osworld.evaluating.families import GETTERS, METRICS
from paragent.envs.osworld.evaluating.gaps import missing

__all__ = ["GETTERS", "METRICS", "evaluate", "missing"]
