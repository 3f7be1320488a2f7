"""Budgets of a run: `--max-cost`, `--max-tokens` and `--max-time`. Decides when a session stops; does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paragent.errors import ConfigError
from paragent.rollout.live_run import LiveBudget
from paragent.store.summary import cost_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.rollout.config import RolloutConfig
    from paragent.rollout.live_status import TokenUsage

__all__ = ["Budgets", "budget_flag", "check_prices", "described", "reason_to_stop"]


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of a run; all sessions of the run count.

    A budget is used up when as much as its limit is used. If it is unknown how much is used, the budget counts as used up,
    because a limit that cannot be checked does not limit anything.
    """

    cost: float | None = None
    """In the currency of the prices."""
    tokens: int | None = None
    """Prompt and completion tokens together."""
    time: float | None = None
    """The duration of all sessions, in seconds."""
    prices: Mapping[str, Mapping[str, float]] | None = None
    """The prices of the model and the judge."""

    @classmethod
    def of(cls, config: RolloutConfig, prices: Mapping[str, Mapping[str, float]] | None) -> Budgets:
        """Return the budgets of a configuration."""
        run = config.run
        return cls(run.max_cost, run.max_tokens, run.max_time, prices)

    @property
    def limited(self) -> bool:
        """Whether there is a budget."""
        return any(limit is not None for limit in (self.cost, self.tokens, self.time))

    def cost_so_far(self, usage: TokenUsage) -> float | None:
        """Return the cost of some tokens; None if it is unknown."""
        if usage.prompt is None or usage.completion is None:
            return None
        return cost_of(self.prices, usage.prompt, usage.completion, usage.judge_prompt, usage.judge_completion)

    def use(self, usage: TokenUsage, seconds: float) -> list[LiveBudget]:
        """Return the budgets that have a limit, and how much of each is used.

        Args:
            usage: the tokens of all sessions, with those of the rollouts under way.
            seconds: the duration of all sessions.
        """
        used = {"cost": self.cost_so_far(usage), "tokens": usage.total, "time": seconds}
        limits: dict[str, float | None] = {"cost": self.cost, "tokens": self.tokens, "time": self.time}
        return [LiveBudget(name, limit, used[name]) for name, limit in limits.items() if limit is not None]

    def used_up(self, usage: TokenUsage, seconds: float) -> LiveBudget | None:
        """Return the first budget that is used up; None if there is none."""
        return next((one for one in self.use(usage, seconds) if one.used is None or one.used >= one.limit), None)


def budget_flag(name: str) -> str:
    """Return the flag that sets a budget."""
    return f"--max-{name}"


def reason_to_stop(budget: LiveBudget) -> str:
    """Return why a run stops because of a budget."""
    flag = budget_flag(budget.name)
    if budget.used is None:
        return f"{flag} cannot be checked: the endpoint or the agent does not report its tokens"
    return f"the budget of {flag} is used up: {described(budget)}"


def described(budget: LiveBudget) -> str:
    """Return how much of a budget is used, as `tokens 1,200 of 5,000`."""
    form = {"cost": ",.4f", "tokens": ",.0f", "time": ",.0f"}[budget.name]
    unit = " s" if budget.name == "time" else ""
    used = "unknown" if budget.used is None else f"{budget.used:{form}}{unit}"
    return f"{budget.name} {used} of {budget.limit:{form}}{unit}"


def check_prices(config: RolloutConfig, prices: Mapping[str, Mapping[str, float]] | None) -> None:
    """Check that the cost of a run with `--max-cost` can be computed.

    Raises:
        ConfigError: a price is unknown.
    """
    if config.run.max_cost is None:
        return
    judge = config.environment.judge_model
    missing = [config.model.name] if prices is None else [judge] if judge and "judge" not in prices else []
    if missing:
        raise ConfigError(
            f"--max-cost needs the price of {missing[0]}: add --prices FILE, a JSON or YAML file with the price per million "
            f'tokens, such as {{"{missing[0]}": {{"input": 2.0, "output": 8.0}}}}'
        )
