"""Guess two thirds of the average: many agents, each of which asks a model that takes a second, over several rounds.

    python examples/guess_two_thirds.py                    # 1,000 agents
    python examples/guess_two_thirds.py --agents 1000000   # a million, on this machine

In every round each agent hears the winning number of the round before, thinks for a second, and names a number between 0
and 100. Whoever is closest to two thirds of the average wins. Reasonable agents end up at 0.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import time

from paragent import AgentBase


class Guesser(AgentBase):
    """Believes that the others will guess around the last winning number, and goes some way below it."""

    def __init__(self, number: int, seconds: float) -> None:
        super().__init__(f"guesser {number}")
        self.depth = seconds, 0.5 + (number * 7919 % 1000) / 1000

    async def model(self, prompt: float) -> float:
        """Stand in for a language model: takes its time, without computing."""
        seconds, depth = self.depth
        await asyncio.sleep(seconds)
        return prompt * (2 / 3) ** depth

    async def guess(self, last_winner: float) -> float:
        """Name a number, having heard the last winning one."""
        return await self.model(last_winner)

    async def process(self) -> tuple[int, float]:
        """Return the process that the agent lives in, and the most gigabytes that it ever had."""
        return os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def play(count: int, rounds: int, seconds: float) -> None:
    # Nothing here hangs in cycles, and with Python's settings a quarter of this process's time would go into looking for them
    # among a million agents and answers. What is dropped is freed all the same.
    gc.disable()
    started = time.perf_counter()
    agents = [Guesser(number, seconds, to_dist=True) for number in range(count)]
    print(f"{count:,} agents asked for in {time.perf_counter() - started:.2f} s")
    winner = 50.0
    for turn in range(1, rounds + 1):
        began = time.perf_counter()
        answers = [agent.guess(winner) for agent in agents]
        guesses = [answer.result() for answer in answers]
        average = sum(guesses) / count
        winner = min(guesses, key=lambda guess: abs(guess - average * 2 / 3))
        print(
            f"round {turn}: average {average:7.4f}, two thirds of it {average * 2 / 3:7.4f}, winner {winner:7.4f} "
            f"({time.perf_counter() - began:.2f} s)"
        )
    print(f"{rounds} rounds of {count:,} agents in {time.perf_counter() - started:.2f} s")
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    servers = dict(answer.result() for answer in [agent.process() for agent in agents[:100]])
    print(f"memory: {usage:.2f} GB of this process, {sum(servers.values()):.2f} GB of its {len(servers)} servers")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=None, help="of each call to the model (default: 0.3; a million: 1)"
    )
    options = parser.parse_args()
    play(
        options.agents,
        options.rounds,
        options.seconds if options.seconds is not None else 1.0 if options.agents > 1_000 else 0.3,
    )
