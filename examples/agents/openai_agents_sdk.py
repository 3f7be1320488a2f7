"""An agent of the OpenAI Agents SDK with one tool. It reads the question from stdin and prints the answer.

    paragent rollout --mode math --data tasks.jsonl --agent "cmd: python examples/agents/openai_agents_sdk.py"

The SDK finds the model by OPENAI_BASE_URL and OPENAI_API_KEY; it uses the Responses API.
"""

import os
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # traces would be sent to OpenAI


@function_tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


agent = Agent(
    name="Calculator",
    instructions="Compute with the tool. End with a line `Answer: NUMBER`.",
    model=os.environ.get("PARAGENT_MODEL", "gpt-4.1"),
    tools=[multiply],
)
result = Runner.run_sync(agent, sys.stdin.read(), max_turns=10)
print(result.final_output)
