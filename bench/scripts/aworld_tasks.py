"""Trivial tasks on an engine of AWorld, in AWorld's own environment: prints the number of answers and the seconds.

Arguments: the engine's name, the number of tasks, the number of workers.
"""

import sys
import time

from aworld.agents.llm_agent import Agent
from aworld.config.conf import AgentConfig, RunConfig
from aworld.core.common import ActionModel
from aworld.core.task import Task
from aworld.runner import Runners


class Echo(Agent):
    """Returns its input without asking a model."""

    async def async_policy(self, observation, info=None, message=None, **kwargs):
        self._finished = True
        return [ActionModel(agent_name=self.id(), policy_info=observation.content)]


def main() -> None:
    engine, size, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    conf = AgentConfig(
        llm_provider="openai", llm_model_name="none", llm_api_key="none", llm_base_url="http://127.0.0.1:1"
    )
    tasks = [Task(input=f"question {n}", agent=Echo(name=f"echo{n}", conf=conf), id=str(n)) for n in range(size)]
    run_conf = RunConfig(engine_name=engine, worker_num=workers, reuse_process=False)
    started = time.perf_counter()
    responses = Runners.sync_run_task(task=tasks, run_conf=run_conf)
    seconds = time.perf_counter() - started
    print("RESULT", sum(1 for response in responses.values() if response.answer), seconds, flush=True)


if __name__ == "__main__":
    main()
