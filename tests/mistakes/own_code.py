"""Mistakes with the user's own agents, environments, scorers and engines."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_RUN = "paragent rollout --mode math --model demo --data tasks.jsonl --engine inline"
_AGENTS = """
from paragent import AgentBase, Msg

class Tutor(AgentBase):
    def __init__(self, name, subject):
        super().__init__(name)

    def reply(self, x):
        return Msg(name=self.name, content="5")

class Silent(AgentBase):
    pass

def answer():
    return "5"

settings = {"colour": "red"}
"""

MISTAKES = (
    Mistake(
        title="a module that does not exist",
        command=f"{_RUN} --agent my_agnet:Tutor",
        files={"my_agent.py": _AGENTS},
        says=(
            "--agent my_agnet:Tutor: there is no module 'my_agnet' in the current folder, in PYTHONPATH or among the installed",
        ),
    ),
    Mistake(
        title="a module that needs a package",
        command=f"{_RUN} --agent my_agent:Tutor",
        files={"my_agent.py": "import no_such_framework\n"},
        says=(
            "the module 'my_agent' needs 'no_such_framework', which is not installed in the environment of paragent",
            "my_agent.py, line 1",
        ),
    ),
    Mistake(
        title="a module that raises an error",
        command=f"{_RUN} --agent my_agent:Tutor",
        files={"my_agent.py": "import os\nKEY = os.environ['NO_SUCH_KEY']\n"},
        says=("the module 'my_agent' cannot be imported: KeyError: 'NO_SUCH_KEY'", "my_agent.py, line 2"),
    ),
    Mistake(
        title="a module with wrong syntax",
        command=f"{_RUN} --agent my_agent:Tutor",
        files={"my_agent.py": "def answer(question:\n"},
        says=("the module 'my_agent' cannot be imported: SyntaxError:", "my_agent.py, line 1"),
    ),
    Mistake(
        title="a script that ends the program when it is imported",
        command=f"{_RUN} --agent my_agent:answer",
        files={"my_agent.py": "import sys\nsys.exit('usage: my_agent.py QUESTION')\n"},
        says=("the module 'my_agent' cannot be imported: SystemExit: usage: my_agent.py QUESTION",),
    ),
    Mistake(
        title="typing error in the name of a class",
        command=f"{_RUN} --agent my_agent:Tuto",
        files={"my_agent.py": _AGENTS},
        says=("has no attribute 'Tuto', did you mean 'Tutor'?",),
    ),
    Mistake(
        title="a class that the module does not have",
        command=f"{_RUN} --agent my_agent:Main",
        files={"my_agent.py": _AGENTS},
        says=("has no attribute 'Main'; it defines Tutor, Silent, answer",),
    ),
    Mistake(
        title="a class whose constructor needs arguments",
        command=f"{_RUN} --agent my_agent:Tutor",
        files={"my_agent.py": _AGENTS},
        says=(
            "--agent: Tutor cannot be constructed: missing a required argument: 'subject'",
            "write a subclass that sets the other arguments",
        ),
    ),
    Mistake(
        title="a class without reply",
        command=f"{_RUN} --agent my_agent:Silent",
        files={"my_agent.py": _AGENTS},
        says=("--agent: Silent needs a method `run_episode(episode)` or, as a subclass of AgentBase, a `reply`",),
    ),
    Mistake(
        title="a function without parameters",
        command=f"{_RUN} --agent my_agent:answer",
        files={"my_agent.py": _AGENTS},
        says=(
            "--agent: the function cannot be called with the question: too many positional arguments",
            "Rollouts pass the question as the first argument",
        ),
    ),
    Mistake(
        title="a name that is not an agent",
        command=f"{_RUN} --agent my_agent:settings",
        files={"my_agent.py": _AGENTS},
        says=(
            "--agent names {'colour': 'red'}, which is neither an agent nor an agent class; name a class or a function",
        ),
    ),
    Mistake(
        title="the file instead of the module",
        command=f"{_RUN} --agent my_agent.py:Tutor",
        files={"my_agent.py": _AGENTS},
        says=("--agent my_agent.py:Tutor: write the name of the module without .py, as in my_agent:Tutor",),
    ),
    Mistake(
        title="a script without cmd:",
        command=f"{_RUN} --agent 'python my_agent.py'",
        files={"my_agent.py": _AGENTS},
        says=(
            "--agent: 'python my_agent.py' is not of the form 'package.module:Name'",
            "a program begins with cmd: as in --agent 'cmd: python my_agent.py'",
        ),
    ),
    Mistake(
        title="a program that does not exist",
        command=f"{_RUN} --agent 'cmd: no-such-agent --fast'",
        says=("--agent: there is no program 'no-such-agent'", "Install it, activate its environment, or give its path"),
    ),
    Mistake(
        title="a script that does not exist",
        command=f"{_RUN} --agent 'cmd: python my_agnet.py' --agent-in host",
        files={"my_agent.py": _AGENTS},
        says=("--agent: there is no file my_agnet.py, did you mean 'my_agent.py'?",),
    ),
    Mistake(
        title="an empty command",
        command=f"{_RUN} --agent cmd:",
        says=("--agent: the command is empty; for example --agent 'cmd: python my_agent.py'",),
    ),
    Mistake(
        title="a program that never calls the model",
        command=f"{_RUN} --agent 'cmd: echo 17' --agent-in host",
        status=1,
        waits=True,
        says=(
            "no rollout called the model: the program must use the address in OPENAI_BASE_URL or ANTHROPIC_BASE_URL",
        ),
    ),
    Mistake(
        title="a program that fails",
        command=f"{_RUN} --agent 'cmd: sh -c \"echo no licence >&2; exit 3\"' --agent-in host",
        status=1,
        says=(
            "2 rollouts without a score: 2 failed (counted as 0); reason: the program exited with status 3: no licence",
        ),
    ),
    Mistake(
        title="a place for the built-in agent",
        command=f"{_RUN} --agent-in host",
        says=("--agent-in is for your own agent: add --agent, or remove it",),
    ),
    Mistake(
        title="an environment that is not a subclass",
        command="paragent rollout --env my_env:Shop --model demo --data tasks.jsonl",
        files={"my_env.py": "class Shop:\n    pass\n"},
        says=("'my_env:Shop' is not an environment: it must be a subclass of paragent.Environment",),
    ),
    Mistake(
        title="an environment that cannot be imported",
        command="paragent rollout --env my_env:Shop --model demo --data tasks.jsonl",
        files={"my_env.py": "from paragent import Enviroment\n"},
        says=(
            "--env my_env:Shop: the module 'my_env' cannot be imported: ImportError: cannot import name 'Enviroment'",
        ),
    ),
    Mistake(
        title="a scorer that is not a subclass",
        command=f"{_RUN} --metric my_scorer:close_enough",
        files={"my_scorer.py": "def close_enough(task, answer):\n    return 1.0\n"},
        says=("'my_scorer:close_enough' is not a scorer: it must be a subclass of paragent.Scorer",),
    ),
    Mistake(
        title="a scorer whose score is not async",
        command=f"{_RUN} --metric my_scorer:Close",
        files={
            "my_scorer.py": "from paragent import Scorer\n\nclass Close(Scorer):\n    def score(self, task, answer):\n"
            "        return 1.0\n"
        },
        says=(
            "the method score of 'my_scorer:Close' must be `async def score(self, task, answer)` and return a Score",
        ),
    ),
    Mistake(
        title="an OpenEnv server that does not run",
        command="paragent rollout --env openenv:http://127.0.0.1:9 --model demo --data tasks.jsonl",
        says=("there is no OpenEnv server at http://127.0.0.1:9", "Start the server, or correct the address"),
    ),
    Mistake(
        title="a plug-in whose package is broken",
        command="paragent rollout --mode shop --model demo --data tasks.jsonl",
        files={
            "shop-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n",
            "shop-1.0.dist-info/entry_points.txt": "[paragent.envs]\nshop = shop_env:Shop\n",
        },
        says=("the environment 'shop' of another package, shop_env:Shop: there is no module 'shop_env'",),
    ),
)
