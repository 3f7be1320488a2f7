"""An agent of Pydantic AI with one tool. It reads the question from stdin and writes the answer to a file.

paragent rollout --mode math --data tasks.jsonl --agent "cmd: python examples/agents/pydantic_ai_agent.py"
"""

import os
import sys
from pathlib import Path

from pydantic_ai import Agent

agent = Agent(
    f"openai-chat:{os.environ.get('PARAGENT_MODEL', 'gpt-4.1')}",
    instructions="Compute with the tool. End with a line `Answer: NUMBER`.",
)


@agent.tool_plain
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


result = agent.run_sync(sys.stdin.read())
print("log lines may go to stdout if the answer is in the file")
Path(os.environ["PARAGENT_ANSWER_FILE"]).write_text(result.output)
