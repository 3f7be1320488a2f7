"""OSWorld's evaluators: getters say what is there, metrics say whether it is right, `evaluate` puts them together."""

from manyhands.envs.osworld.evaluating.evaluator import evaluate
from manyhands.envs.osworld.evaluating.families import GETTERS, METRICS
from manyhands.envs.osworld.evaluating.gaps import missing

__all__ = ["GETTERS", "METRICS", "evaluate", "missing"]
