"""An agent of LangGraph with one tool, whose replies are streamed. It reads the question from stdin and prints the answer.

paragent rollout --mode math --data tasks.jsonl --agent "cmd: python examples/agents/langgraph_agent.py"
"""

import os
import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


model = ChatOpenAI(model=os.environ.get("PARAGENT_MODEL", "gpt-4.1"), streaming=True).bind_tools([multiply])


def think(state):
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("tools", ToolNode([multiply]))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", tools_condition)
graph.add_edge("tools", "think")

rules = SystemMessage("Compute with the tool. End with a line `Answer: NUMBER`.")
state = graph.compile().invoke({"messages": [rules, HumanMessage(sys.stdin.read())]})
print(state["messages"][-1].content)
