"""`ParallelizableAgent`: an agent whose sub-agents reply at the same time."""

from __future__ import annotations

import inspect
import traceback
from collections import Counter
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from paragent.agents.base import AgentBase, answer_of, ask, name_of, replies_async, require_agent
from paragent.errors import ConfigError, SubAgentError, SubAgentsFailed
from paragent.execution import record_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["ParallelizableAgent"]


class ParallelizableAgent(AgentBase):
    """Calls all its sub-agents at the same time: async ones on the event loop, sync ones in threads.

    Without `aggregate_func` the answer is a dictionary of the sub-agents' answers by name. With it, the answer is the result of
    `aggregate_func(agent, results)`, which may be async; `results` has a `SubAgentError` for each sub-agent that failed.

    Raises:
        ConfigError: two sub-agents have the same name, or there are no sub-agents.
        SubAgentsFailed: (by `reply`) sub-agents failed and there is no `aggregate_func`.
    """

    def __init__(
        self,
        name: str | None = None,
        agents: Sequence[Any] = (),
        aggregate_func: Callable[[ParallelizableAgent, dict[str, Any]], Any] | None = None,
    ) -> None:
        super().__init__(name)
        if not agents:
            raise ConfigError("a ParallelizableAgent needs sub-agents: ParallelizableAgent(agents=[...])")
        for agent in agents:
            require_agent(agent, f"sub-agent of {self.name!r}")
        if twice := [name for name, count in Counter(map(name_of, agents)).items() if count > 1]:
            raise ConfigError(f"sub-agents must have different names; more than one is called {twice[0]!r}")
        self.agents = list(agents)
        """The sub-agents."""
        self.aggregate_func = aggregate_func
        """The function that combines their answers; None: a dictionary of them."""

    async def reply(self, x: Any = None) -> Any:
        """Call every sub-agent and return the aggregate of their answers."""
        import asyncio  # imported here because every worker loads this module and few need asyncio
        from concurrent.futures import ThreadPoolExecutor

        blocking = [agent for agent in self.agents if not replies_async(agent)]
        threads = ThreadPoolExecutor(len(blocking), thread_name_prefix=self.name) if blocking else None
        try:
            answers = await asyncio.gather(*(self._ask(agent, x, threads) for agent in self.agents))
        finally:
            if threads:
                threads.shutdown(wait=False, cancel_futures=True)
        results = dict(zip(map(name_of, self.agents), answers, strict=True))
        for name, answer in results.items():
            record_step({"agent": name, "answer": answer})
        return await self._aggregate(results)

    async def _ask(self, agent: Any, x: Any, threads: ThreadPoolExecutor | None) -> Any:
        import asyncio

        try:
            if replies_async(agent):
                reply = ask(agent, x)
            else:
                reply = await asyncio.get_running_loop().run_in_executor(threads, _in_context(ask), agent, x)
            return answer_of(await reply if inspect.isawaitable(reply) else reply)
        except Exception as error:  # noqa: BLE001 - the failure of a sub-agent is an input of the aggregate function
            return SubAgentError(name_of(agent), type(error).__name__, str(error), traceback.format_exc())

    async def _aggregate(self, results: dict[str, Any]) -> Any:
        if self.aggregate_func is not None:
            merged = self.aggregate_func(self, results)
            return await merged if inspect.isawaitable(merged) else merged
        if failed := {name: answer for name, answer in results.items() if isinstance(answer, SubAgentError)}:
            raise SubAgentsFailed(failed)
        return results


def _in_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` bound to the caller's context variables, so that prints in a thread are labelled with its task."""
    context = copy_context()
    return lambda *args: context.run(function, *args)
