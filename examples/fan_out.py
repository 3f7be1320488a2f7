"""Ask three agents concurrently and merge their answers with a function."""

import asyncio
from typing import Any

from paragent import ActionModel, AgentBase, Msg, ParallelizableAgent, Runners, SubAgentError


class Search(AgentBase):
    async def reply(self, x: Msg) -> Msg:
        await asyncio.sleep(0.5)
        if self.name == "bing":
            raise ConnectionError("no answer")
        return Msg(name=self.name, content=f"{self.name} found {x.content!r}")


def merge(agent: ParallelizableAgent, results: dict[str, Any]) -> ActionModel:
    found = [answer for answer in results.values() if not isinstance(answer, SubAgentError)]
    missing = [name for name, answer in results.items() if isinstance(answer, SubAgentError)]
    return ActionModel(policy_info=f"{'; '.join(found)} (without {', '.join(missing)})")


searchers = [Search("google"), Search("bing"), Search("wiki")]
response = Runners.sync_run(input="agents", agent=ParallelizableAgent(agents=searchers, aggregate_func=merge))
print(response.answer)
print(f"three searches of 0.5 s took {response.time_cost:.2f} s")
