"""`ParallelizableAgent`: sub-agents reply at the same time, and failures differ from answers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from paragent import (
    ActionModel,
    AgentBase,
    ConfigError,
    Msg,
    ParallelizableAgent,
    RunConfig,
    Runners,
    SubAgentError,
    SubAgentsFailed,
    TaskStatus,
)

INLINE = RunConfig(engine_name="inline")


class Meeting(AgentBase):
    """Replies only after all others were called."""

    everybody = threading.Barrier(3)

    def reply(self, x: Any = None) -> Msg:
        self.everybody.wait(60)
        return Msg(name=self.name, content=f"{self.name} received {x.content}")


class AsyncMeeting(AgentBase):
    present = 0

    async def reply(self, x: Any = None) -> Msg:
        type(self).present += 1
        while type(self).present < 3:
            await asyncio.sleep(0.001)
        return Msg(name=self.name, content=x.content)


class Failing(AgentBase):
    def reply(self, x: Any = None) -> Msg:
        raise KeyError("no such page")


class Fine(AgentBase):
    def reply(self, x: Any = None) -> Msg:
        return Msg(name=self.name, content=f"fine {x.content}")


def ask(agent: ParallelizableAgent, text: str = "hi") -> Any:
    return asyncio.run(asyncio.wait_for(agent.reply(Msg(name="user", content=text)), 60))


def test_sync_sub_agents_reply_at_the_same_time() -> None:
    agent = ParallelizableAgent(name="all", agents=[Meeting(name) for name in "abc"])
    assert ask(agent) == {"a": "a received hi", "b": "b received hi", "c": "c received hi"}


def test_async_sub_agents_reply_at_the_same_time() -> None:
    agent = ParallelizableAgent(name="all", agents=[AsyncMeeting(name) for name in "abc"])
    assert ask(agent) == {"a": "hi", "b": "hi", "c": "hi"}


def test_functions_can_be_sub_agents() -> None:
    def upper(message: Msg) -> str:
        return str(message.content).upper()

    assert ask(ParallelizableAgent(agents=[upper, Fine("f")])) == {"upper": "HI", "f": "fine hi"}


def test_the_aggregate_function_gets_failures_as_errors() -> None:
    def merge(agent: ParallelizableAgent, results: dict[str, Any]) -> ActionModel:
        broken = [name for name, result in results.items() if isinstance(result, SubAgentError)]
        assert "in reply" in results["broken"].traceback
        return ActionModel(policy_info=f"{agent.name}: {broken} {results['good']} {results['broken'].error_type}")

    agent = ParallelizableAgent(name="panel", agents=[Failing("broken"), Fine("good")], aggregate_func=merge)
    response = Runners.sync_run(input="x", agent=agent, run_conf=INLINE)
    assert response.answer == "panel: ['broken'] fine x KeyError"


def test_without_an_aggregate_function_the_response_names_failed_sub_agents() -> None:
    agent = ParallelizableAgent(name="panel", agents=[Failing("broken"), Fine("good")])
    with pytest.raises(SubAgentsFailed, match="broken: KeyError"):
        ask(agent)
    response = Runners.sync_run(input="x", agent=agent, run_conf=RunConfig(worker_num=1))
    assert response.status is TaskStatus.FAILED
    assert "broken: KeyError" in response.msg
    assert {"agent": "good", "answer": "fine x"} in response.trajectory, "the good answer is not lost"


def test_an_async_aggregate_function_is_awaited() -> None:
    async def merge(agent: ParallelizableAgent, results: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        return "merged"

    assert ask(ParallelizableAgent(agents=[Fine("a")], aggregate_func=merge)) == "merged"


def test_sub_agents_are_required_and_need_different_names() -> None:
    with pytest.raises(ConfigError, match="'a'"):
        ParallelizableAgent(agents=[Fine("a"), Fine("a")])
    with pytest.raises(ConfigError, match="agents="):
        ParallelizableAgent(name="none")


def test_an_agent_without_reply_raises_a_clear_error() -> None:
    with pytest.raises(TypeError, match="reply"):
        AgentBase("bare").reply(None)
