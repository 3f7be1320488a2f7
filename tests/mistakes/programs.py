"""Mistakes in Python programs. The message of the exception has the cure."""

from __future__ import annotations

from paragent.testing.agents import Counter
from tests.mistakes.mistake import Mistake
from tests.mistakes.surroundings import agent_server, free_port

_TUTOR = """
from paragent import AgentBase, Msg, RunConfig, Runners, Task

class Tutor(AgentBase):
    def reply(self, x):
        return Msg(name=self.name, content="5")

"""


def _mistake(title: str, code: str, *says: str, **more: object) -> Mistake:
    return Mistake(title=title, program=_TUTOR + code, says=says, status=1, **more)  # type: ignore[arg-type]


MISTAKES = (
    _mistake(
        "typing error in a field of RunConfig",
        "RunConfig(worker_nums=4)",
        "ConfigError: RunConfig has no field 'worker_nums', did you mean 'worker_num'? The fields are:",
    ),
    _mistake(
        "no workers",
        "RunConfig(worker_num=0)",
        "ConfigError: worker_num must be an integer of at least 1 or None, not 0",
    ),
    _mistake(
        "a time limit as text",
        "RunConfig(timeout='10s')",
        "ConfigError: timeout must be a number of seconds above 0 or None, not '10s'",
    ),
    _mistake(
        "typing error in the name of an engine of a program",
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), RunConfig(engine_name='lokal'))",
        "UnknownName: there is no engine called 'lokal', did you mean 'local'? There are:",
    ),
    _mistake(
        "typing error in an option of an engine",
        "config = RunConfig(engine_name='ray', engine_options={'adress': 'auto'})\n"
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), config)",
        "ConfigError: the engine 'ray' has no option 'adress', did you mean 'address'? The options are:",
    ),
    _mistake(
        "an option of a cluster for the local engine",
        "config = RunConfig(engine_options={'address': 'head:6379'})\n"
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), config)",
        "ConfigError: the engine 'local' has no option 'address'. There are no options",
    ),
    _mistake(
        "a cluster for the local engine",
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), RunConfig(in_local=False))",
        "ConfigError: the engine 'local' runs on this host, so in_local=False cannot be used; for a cluster, use",
    ),
    _mistake(
        "the address of a Ray cluster without in_local=False",
        "config = RunConfig(engine_name='ray', engine_options={'address': 'head:6379'})\n"
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), config)",
        "EngineFailed: the address 'head:6379' is a cluster; add in_local=False (--engine-address) to use it",
    ),
    _mistake(
        "the address of a Spark cluster without in_local=False",
        "config = RunConfig(engine_name='spark', engine_options={'master': 'spark://head:7077'})\n"
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), config)",
        "EngineFailed: the master 'spark://head:7077' is a cluster; add in_local=False (--engine-address) to use it",
    ),
    _mistake(
        "a Spark master without spark://",
        "config = RunConfig(engine_name='spark', in_local=False, engine_options={'master': '127.0.0.1:7077'})\n"
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), config)",
        "EngineFailed: the master '127.0.0.1:7077' has no scheme; did you mean spark://127.0.0.1:7077?",
    ),
    _mistake(
        "settings as a dictionary",
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), {'worker_num': 4})",
        "ConfigError: run_conf must be a RunConfig, not {'worker_num': 4}; write RunConfig(worker_num=8)",
    ),
    _mistake(
        "an engine of one's own that is not a subclass",
        "Runners.sync_run_task(Task(input='?', agent=Tutor('a')), RunConfig(cls=dict))",
        "ConfigError: cls must be a subclass of RuntimeEngine or the path to one, not <class 'dict'>",
    ),
    _mistake(
        "an engine of one's own and the name of another",
        "RunConfig(cls='own_engine:PoliteRuntime', engine_name='ray')",
        "ConfigError: cls and engine_name='ray' name two engines; give one of them",
    ),
    _mistake(
        "two tasks of a program with the same id",
        "Runners.sync_run_task([Task(input='?', agent=Tutor('a'), id='q') for _ in range(2)])",
        "DuplicateTaskId: two tasks have the id 'q'; use different ids, or leave `id` out to get a unique one",
    ),
    _mistake(
        "questions instead of tasks",
        "Runners.sync_run_task(['What is 2 + 3?'])",
        "UsageError: expected a Task, got 'What is 2 + 3?'; write Task(input=..., agent=...)",
    ),
    _mistake(
        "a task without an agent",
        "Runners.sync_run_task(Task(input='?', id='q'))",
        "UsageError: task 'q': agent must be an AgentBase or a function of one argument, not None",
    ),
    _mistake(
        "the class instead of an agent",
        "Runners.sync_run_task(Task(input='?', agent=Tutor, id='q'))",
        "UsageError: task 'q': agent is the class Tutor; pass an instance, Tutor(...)",
    ),
    _mistake(
        "an async function that is called",
        "import warnings\nwarnings.simplefilter('ignore')\nasync def answer(x):\n    return 5\n\n"
        "Runners.sync_run_task(Task(input='?', agent=answer('?'), id='q'))",
        "UsageError: task 'q': agent must be an AgentBase or a function of one argument",
        "pass the async function itself and do not call it",
    ),
    _mistake(
        "an agent without reply",
        "class Silent(AgentBase):\n    pass\n\n"
        "Runners.sync_run_task(Task(input='?', agent=Silent('a'), id='q'))['q'].unwrap()",
        "TypeError: Silent has no `reply` method: define `def reply(self, x)` or `async def reply(self, x)`",
    ),
    _mistake(
        "an agent that cannot be sent",
        "import threading\nagent = Tutor('a')\nagent.lock = threading.Lock()\n"
        "Runners.sync_run_task(Task(input='?', agent=agent, id='q'))",
        "Unserialisable: task 'q' cannot be sent to another process because of `task.agent.lock`, a _thread.lock",
        "create this object where it is used; `__getstate__` can leave out an attribute",
    ),
    _mistake(
        "an answer that cannot be sent",
        "import threading\n\n"
        "Runners.sync_run_task(Task(input='?', agent=lambda x: threading.Lock(), id='q'))['q'].unwrap()",
        "Unserialisable: the answer of task 'q' cannot be sent to another process because of `answer`, a _thread.lock",
        "Use plain data instead",
    ),
    _mistake(
        "a task that takes too long",
        "import time\n"
        "Runners.sync_run_task(Task(input=60, agent=time.sleep, id='q'), RunConfig(timeout=0.2))['q'].unwrap()",
        "TaskFailed: task 'q' timed out: TimeoutError: stopped after",
        "its limit is 0.2 s",
    ),
    _mistake(
        "a task whose worker is killed",
        "import os\n"
        "Runners.sync_run_task(Task(input=9, agent=lambda x: os.kill(os.getpid(), x), id='q'))['q'].unwrap()",
        "TaskFailed: task 'q' lost: WorkerLost: worker",
        "was killed by SIGKILL (the kernel does this when memory runs out) (after 2 retries)",
    ),
    _mistake(
        "a ParallelizableAgent without agents",
        "from paragent import ParallelizableAgent\nParallelizableAgent('all', agents=[])",
        "ConfigError: a ParallelizableAgent needs sub-agents: ParallelizableAgent(agents=[...])",
    ),
    _mistake(
        "sub-agents with the same name",
        "from paragent import ParallelizableAgent\nParallelizableAgent('all', agents=[Tutor('a'), Tutor('a')])",
        "ConfigError: sub-agents must have different names; more than one is called 'a'",
    ),
    _mistake(
        "typing error in a setting of RolloutConfig",
        "from paragent import RolloutConfig\nRolloutConfig(mode='math', num_rolouts=4)",
        "ConfigError: RolloutConfig has no setting 'num_rolouts', did you mean 'num_rollouts'?",
        "`paragent rollout --help` describes all settings",
    ),
    _mistake(
        "the settings of rollouts as a dictionary",
        "from paragent import run_parallel_rollout\nrun_parallel_rollout({'mode': 'math'})",
        "ConfigError: the settings must be a RolloutConfig, not {'mode': 'math'}; write RolloutConfig(mode=..., data=...)",
    ),
    _mistake(
        "typing error in the name of a provider of a program",
        "from paragent import VMPoolManager\nVMPoolManager('qemuu', 2)",
        "UnknownName: there is no provider called 'qemuu', did you mean 'qemu'? There are:",
    ),
    _mistake(
        "the size of a pool as text",
        "from paragent import VMPoolManager\nVMPoolManager('process', '2')",
        "ConfigError: the size of a pool must be an integer of at least 1, not '2'",
    ),
    _mistake(
        "typing error in a setting of machines",
        "from paragent import VMPoolManager\nVMPoolManager('process', 2, memory=512)",
        "ConfigError: MachineSettings has no field 'memory', did you mean 'memory_mib'? The fields are:",
    ),
    _mistake(
        "typing error in to_dist",
        "Tutor('a', to_dist={'hots': '127.0.0.1', 'port': 12345})",
        "ConfigError: to_dist has no setting 'hots', did you mean 'host'? The settings are:",
    ),
    _mistake(
        "a port that is not a number",
        "Tutor('a').to_dist(host='127.0.0.1', port='http')",
        "ConfigError: port must be a number between 0 and 65535, not 'http'",
    ),
    _mistake(
        "an agent server of a program that does not run",
        "print(Tutor('a').to_dist(host='127.0.0.1', port=<port>).reply(None).content)",
        "ServerLost: no agent server answers at 127.0.0.1:",
        "start one there with: paragent agent-server --host 127.0.0.1 --port",
        "(connection refused)",
        given=free_port,
    ),
    _mistake(
        "an agent server with other classes",
        "print(Tutor('a').to_dist(host='127.0.0.1', port=<port>).reply(None).content)",
        "AccessDenied: this server runs only its own agent classes (Counter), not 'Tutor'; add it to custom_agent_classes",
        given=agent_server(custom_agent_classes=[Counter]),
    ),
    _mistake(
        "an argument of a remote agent that cannot be sent",
        "import threading\nTutor('a', to_dist=True).reply(threading.Lock())",
        "Unserialisable: argument 1 of Tutor.reply cannot be sent to another process because of `argument`, a _thread.lock",
        "Use plain data instead",
    ),
    _mistake(
        "a call of an agent that was stopped",
        "agent = Tutor('a', to_dist=True)\nagent.stop().result(30)\nprint(agent.reply(None).content)",
        "AgentStopped: the agent does not exist any more: it was stopped, or its owner dropped it",
    ),
    _mistake(
        "a token that is too short",
        "import paragent\nparagent.init(token='secret')",
        "ConfigError: a token must have at least 16 characters; make one with: python3 -c",
    ),
)
