"""Agents: the base class, parallel and chat agents, proxies of remote agents, and how an agent is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.agents.base import AgentBase, Reply, answer_of, replies_async
    from paragent.agents.parallel import ParallelizableAgent

__all__ = ["AgentBase", "ParallelizableAgent", "Reply", "answer_of", "replies_async"]

__getattr__ = names_from(
    __name__,
    {
        "base": ("AgentBase", "Reply", "answer_of", "replies_async"),
        "parallel": ("ParallelizableAgent",),
    },
)
