"""mini-swe-agent, a coding agent that works with shell commands in its working folder.

    paragent rollout --mode py --data tasks.jsonl --agent "cmd: python examples/agents/mini_swe_agent.py"

It reads the task from stdin. What it submits is the answer. In the sandbox its commands can do no harm.
"""

import os
import sys
from pathlib import Path

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load((package_dir / "config/default.yaml").read_text())
model = LitellmModel(
    model_name=f"openai/{os.environ.get('PARAGENT_MODEL', 'gpt-4.1')}",
    cost_tracking="ignore_errors",  # the run has the prices
    **{**config.get("model", {}), "model_kwargs": {"drop_params": True}},
)
agent = DefaultAgent(model, LocalEnvironment(), **{**config["agent"], "cost_limit": 0, "step_limit": 30})
result = agent.run(sys.stdin.read())
Path(os.environ["PARAGENT_ANSWER_FILE"]).write_text(result.get("submission", ""))
