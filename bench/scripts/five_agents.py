"""Starts five child agents, then five more with their own processes, and exits. Prints the seconds of each of these steps."""

import sys
import time

from paragent import AgentBase


class Echo(AgentBase):
    def reply(self, x=None):
        return x


def ready(count, **where):
    started = time.perf_counter()
    agents = [Echo(f"echo {number}", to_dist=where or True) for number in range(count)]
    results = [agent.reply(number) for number, agent in enumerate(agents)]
    assert [result.result(10) for result in results] == list(range(count))
    return agents, time.perf_counter() - started


size = int(sys.argv[1])
first, cold = ready(size)
more, warm = ready(size, own_process=True)
from paragent.remote.children.pool import close_children  # noqa: E402
from paragent.remote.link import close_links  # noqa: E402

started = time.perf_counter()
close_links()
close_children()
print(cold, warm, time.perf_counter() - started)
