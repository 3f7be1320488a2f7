"""The interception server of verifiers, in its own environment. The same protocol as `gateway_paragent.py`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys

from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask


def session() -> RolloutSession:
    """Return a rollout without limits and hooks."""
    client = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    task = TraceTask(type="Task", data=TaskData(prompt="any"))
    trace = Trace(task=task, agent=AgentInfo(config=AgentConfig()))
    return RolloutSession(ctx=ModelContext(model="fast", client=client), trace=trace)


async def main() -> None:
    logging.disable(logging.CRITICAL)
    loop = asyncio.get_running_loop()
    secrets: list[tuple[str, str]] = []
    async with InterceptionServer() as server:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            for pair in secrets:
                server.unregister(*pair)
            secrets = [server.register(session()) for _ in range(int(line))]
            shown = [[server.port, "/v1/chat/completions", model_secret] for model_secret, _ in secrets]
            print(json.dumps({"targets": shown}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
