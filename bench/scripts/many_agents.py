"""Many agents on one server: prints agents created per second, bytes of the server for each, seconds for a message to all."""

import sys
import time

from paragent import AgentBase, RpcAgentServerLauncher
from paragent.agents.proxy import link_of


class Small(AgentBase):
    def __init__(self, number):
        self.number = number

    def reply(self, x=None):
        return self.number


if __name__ == "__main__":
    size = int(sys.argv[1])
    launcher = RpcAgentServerLauncher()
    launcher.launch(in_subprocess=True)
    where = {"host": launcher.host, "port": launcher.port}
    warm = Small(0, to_dist=where)
    assert warm.reply().result(10) == 0
    link = link_of(warm)
    before = link.control("info").result(10)["memory_bytes"]
    started = time.perf_counter()
    agents = [Small(number, to_dist=where) for number in range(size)]
    assert agents[-1].reply().result(60) == size - 1
    made = size / (time.perf_counter() - started)
    used = link.control("info").result(10)["memory_bytes"] - before
    started = time.perf_counter()
    results = [agent.reply("hello") for agent in agents]
    assert [result.result(60) for result in results] == list(range(size))
    print(made, used / size, time.perf_counter() - started)
    launcher.shutdown()
