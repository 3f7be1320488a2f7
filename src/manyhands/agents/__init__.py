"""What runs: agents, and how one is asked for an answer."""

from manyhands.agents.base import AgentBase
from manyhands.agents.parallel import ParallelizableAgent
from manyhands.agents.replying import Reply, answer_of, replies_async

__all__ = ["AgentBase", "ParallelizableAgent", "Reply", "answer_of", "replies_async"]
