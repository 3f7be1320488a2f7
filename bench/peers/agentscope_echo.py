"""Calls per second to one AgentScope 0.1.6 agent in distributed mode: python agentscope_echo.py OUTSTANDING CALLS."""

import sys
import time
from collections import deque

import agentscope
from agentscope.agents import AgentBase
from agentscope.message import Msg


class Echo(AgentBase):
    def __init__(self, name):
        super().__init__(name=name)

    def reply(self, x=None):
        return x


if __name__ == "__main__":
    outstanding, calls = int(sys.argv[1]), int(sys.argv[2])
    agentscope.init(save_log=False, save_code=False, save_api_invoke=False, use_monitor=False, logger_level="ERROR")
    agent = Echo("echo").to_dist()
    message = Msg("user", "x" * 100, "user")
    assert agent(message).content == message.content
    waiting = deque()
    started = time.perf_counter()
    for _ in range(calls):
        if len(waiting) >= outstanding:
            _ = waiting.popleft().content
        waiting.append(agent(message))
    while waiting:
        _ = waiting.popleft().content
    print(calls / (time.perf_counter() - started), flush=True)
