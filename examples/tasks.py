"""Run three tasks in parallel on the engine given on the command line."""

import sys

from paragent import AgentBase, EngineName, Msg, RunConfig, Runners, Task


class Tutor(AgentBase):
    def reply(self, x: Msg) -> Msg:
        return Msg(name=self.name, content=f"{self.name} explains: {x.content}")


tutor = Tutor("tutor")
tasks = [
    Task(input="what is machine learning?", agent=tutor, id="task1"),
    Task(input="explain neural networks", agent=tutor, id="task2"),
    Task(input="what is deep learning?", agent=tutor, id="task3"),
]
engine = EngineName(sys.argv[1] if len(sys.argv) > 1 else "local")

for response in Runners.sync_run_task(tasks, RunConfig(engine_name=engine, worker_num=2)).values():
    print(
        f"{response.id}: {response.answer} ({response.status} in {response.time_cost * 1000:.1f} ms on {response.worker})"
    )
