"""Hard stop: the own process of an agent is killed if a cancelled call does not end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from paragent import AgentStopped, CallTimedOut, ConfigError
from paragent.agents.proxy import link_of
from paragent.remote import pending_calls as calls
from tests.remote.faulty_agents import FaultyAgent

if TYPE_CHECKING:
    from pathlib import Path


def own(**settings: Any) -> Any:
    return FaultyAgent(to_dist={"own_process": True, "grace": 0.3, **settings})  # type: ignore[call-arg]


def watched(agent: Any) -> bool:
    """Return whether the agent's process may still be killed because of cancelled calls."""
    hard_stop = link_of(agent).hard_stop
    return hard_stop is not None and hard_stop.active


def ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sleep", "hog"])
def test_a_timed_out_call_that_does_not_end_kills_the_process(method: str, eventually: Any) -> None:
    agent = own()
    pid, helper = agent.pid().result(20), agent.start_process().result(20)
    late = getattr(agent.options(timeout=1.0), method)(60)
    waiting = agent.add(1)
    with pytest.raises(CallTimedOut):
        late.result(20)
    with pytest.raises(AgentStopped, match=r"timed out and did not end within 0\.3 s"):
        waiting.result(20)
    with pytest.raises(AgentStopped):
        agent.add(1).result(20)
    eventually(lambda: ended(pid) and ended(helper))
    assert own().add(1).result(20) == 2, "a new agent has a new process"


@pytest.mark.slow
def test_a_cancelled_call_that_holds_the_interpreter_kills_the_process(
    eventually: Any, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_ANSWER", 1.0)
    agent = own()
    pid = agent.pid().result(20)
    running = agent.hold_interpreter(60, str(mark))
    eventually(mark.exists)
    assert running.cancel()
    with pytest.raises(AgentStopped, match="was cancelled"):
        agent.add(1).result(20)
    eventually(lambda: ended(pid))


def test_a_closed_stream_that_does_not_end_kills_the_process(eventually: Any, mark: Path) -> None:
    agent = own()
    pid = agent.pid().result(20)
    stream = agent.late(60, str(mark))
    assert next(stream) == 0
    eventually(mark.exists)
    stream.close()
    with pytest.raises(AgentStopped, match="was closed"):
        agent.add(1).result(20)
    eventually(lambda: ended(pid))


def test_stopping_an_agent_in_native_code_kills_the_process(eventually: Any) -> None:
    agent = own()
    pid = agent.pid().result(20)
    running = agent.sleep(60)
    agent.pid().result(20)
    assert agent.stop().result(20)
    with pytest.raises(AgentStopped):
        running.result(20)
    eventually(lambda: ended(pid))


@pytest.mark.slow
def test_code_that_can_be_interrupted_does_not_kill_the_process(eventually: Any) -> None:
    agent = own(grace=1.0)
    pid = agent.pid().result(20)
    for _ in range(3):
        with pytest.raises(CallTimedOut):
            agent.options(timeout=0.1).spin().result(20)
    eventually(lambda: not watched(agent))
    assert agent.pid().result(20) == pid


@pytest.mark.slow
def test_a_call_that_times_out_in_the_queue_does_not_kill_the_process(eventually: Any) -> None:
    agent = own(grace=0.1)
    pid = agent.pid().result(20)
    running = agent.sleep(2.0)
    waiting = [agent.options(timeout=0.1).add(n) for n in range(20)]
    for result in waiting:
        with pytest.raises(CallTimedOut):
            result.result(20)
    assert running.result(20) == "slept"
    eventually(lambda: not watched(agent))
    assert agent.pid().result(20) == pid


@pytest.mark.slow
def test_agents_that_share_a_process_have_no_hard_stop(eventually: Any) -> None:
    agent: Any = FaultyAgent(to_dist=True)  # type: ignore[call-arg]
    pid = agent.pid().result(20)
    with pytest.raises(CallTimedOut):
        agent.options(timeout=0.1).sleep(1.0).result(20)
    assert agent.add(1).result(20) == 2, "it waits until the code has ended"
    assert agent.pid().result(20) == pid
    assert pid != os.getpid()


def test_invalid_grace_is_rejected() -> None:
    for grace in (0, -1, float("nan"), float("inf"), "1"):
        with pytest.raises(ConfigError, match="grace"):
            own(grace=grace)
    assert own(grace=None).add(1).result(20) == 2
