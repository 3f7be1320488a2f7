"""The gateway of one worker. Each line of stdin is a number of rollouts; prints their addresses as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from paragent import Environment
from paragent.gateway import Gateway
from paragent.models import ModelSettings, open_model
from paragent.rollout.episode import RolloutEpisode


class Nothing(Environment):
    """Has no tools."""

    name = "nothing"
    metric = "contains"


async def main() -> None:
    url, loop = os.environ["OPENAI_BASE_URL"], asyncio.get_running_loop()
    model = open_model(ModelSettings(name="fast", base_url=url, api_key="any", max_concurrency=1000))
    addresses = []
    async with Gateway() as gateway:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            for address in addresses:
                await gateway.end(address)
            episodes = [RolloutEpisode(Nothing({}), model, 1000, 3) for _ in range(int(line))]
            addresses = [gateway.register(episode) for episode in episodes]
            shown = [
                [int(one.url.split(":")[2].split("/")[0]), f"/{one.path}/v1/chat/completions", one.key]
                for one in addresses
            ]
            print(json.dumps({"targets": shown}), flush=True)
    await model.close()


if __name__ == "__main__":
    asyncio.run(main())
