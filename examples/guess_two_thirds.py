"""The game "guess 2/3 of the average" with many remote agents; each calls a simulated model in every round.

    python examples/guess_two_thirds.py                    # 1,000 agents
    python examples/guess_two_thirds.py --agents 1000000   # a million, on this machine

In every round each agent receives the winning number of the last round, waits for its model, and returns a number between 0
and 100. The number closest to two thirds of the average wins. The numbers converge to 0.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import time
from typing import Any

from paragent import AgentBase, Result


class Guesser(AgentBase):
    """Expects the others to guess close to the last winning number, and guesses lower."""

    def __init__(self, number: int, seconds: float, *, to_dist: Any = None) -> None:
        super().__init__(f"guesser {number}")
        self.depth = seconds, 0.5 + (number * 7919 % 1000) / 1000

    async def model(self, prompt: float) -> float:
        """Simulate a language model: wait without computing."""
        seconds, depth = self.depth
        await asyncio.sleep(seconds)
        return prompt * float((2 / 3) ** depth)

    async def guess(self, last_winner: float) -> float:
        """Return a number between 0 and 100."""
        return await self.model(last_winner)

    async def process(self) -> tuple[int, float]:
        """Return the process id of the agent's server, and its peak memory in GB."""
        return os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run(count: int, rounds: int, seconds: float) -> None:
    # There are no reference cycles here. With Python's defaults, the cycle collector would use a quarter of this process's CPU
    # time for a million agents. Reference counting still frees everything.
    gc.disable()
    started = time.perf_counter()
    agents = [Guesser(number, seconds, to_dist=True) for number in range(count)]
    print(f"{count:,} agents requested in {time.perf_counter() - started:.2f} s")
    winner = 50.0
    for turn in range(1, rounds + 1):
        began = time.perf_counter()
        answers = [Result.of(agent.guess(winner)) for agent in agents]
        guesses = [answer.result() for answer in answers]
        average = sum(guesses) / count
        winner = min(guesses, key=lambda guess: abs(guess - average * 2 / 3))
        print(
            f"round {turn}: average {average:7.4f}, two thirds of it {average * 2 / 3:7.4f}, winner {winner:7.4f} "
            f"({time.perf_counter() - began:.2f} s)"
        )
    print(f"{rounds} rounds of {count:,} agents in {time.perf_counter() - started:.2f} s")
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    servers = dict(answer.result() for answer in [Result.of(agent.process()) for agent in agents[:100]])
    print(f"memory: {usage:.2f} GB in this process, {sum(servers.values()):.2f} GB in its {len(servers)} servers")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=None, help="duration of each model call (default: 0.3; above 1,000 agents: 1)"
    )
    options = parser.parse_args()
    run(
        options.agents,
        options.rounds,
        options.seconds if options.seconds is not None else 1.0 if options.agents > 1_000 else 0.3,
    )
