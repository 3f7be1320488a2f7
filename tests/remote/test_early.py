"""What reaches a server before that which it is about, as it came over another connection."""

from __future__ import annotations

import asyncio
from typing import Any

from paragent.remote.protocol import CallMethod, CallResult, CreateAgent, DefineClass, PushValue
from paragent.remote.server.dispatcher import Host
from paragent.remote.server.policy import Policy
from paragent.remote.values import encode_argument
from paragent.transport.limits import Limits
from tests.remote.crew import Worker

_OWNER, _OTHER = "a" * 32, "b" * 32


def _introduction() -> DefineClass:
    cls, _, _ = encode_argument(Worker, "the class")
    return DefineClass(1, Worker.__module__, Worker.__qualname__, cls)


async def _answer(*said: tuple[str, list[Any]]) -> list[Any]:
    """Return what the other client is told after each of the two has said something, in this order."""
    limits = Limits()
    policy = Policy((), accept_code=True, nesting=limits.nesting)
    host = Host(policy, limits, asyncio.get_running_loop(), lambda: None)
    sessions = {who: host.open_session(who)[0] for who in (_OWNER, _OTHER)}
    for who, items in said:
        host.handle(sessions[who], items, [])
    async with asyncio.timeout(30):
        await sessions[_OTHER]._wake.wait()
    host.close()
    return sessions[_OTHER]._take()[0]


def test_a_call_that_comes_before_its_agent_waits_until_the_agent_is_made() -> None:
    call = CallMethod(1, (_OWNER, 1), "add", (1,))
    new = CreateAgent(1, 1, "init", ("late",), None)
    answer = _answer((_OTHER, [call]), (_OWNER, [_introduction(), new]))
    assert asyncio.run(answer) == [CallResult(1, 2)]


def test_a_call_waits_for_an_agent_whose_constructor_waits_for_an_argument() -> None:
    call = CallMethod(1, (_OWNER, 1), "add", (1,))
    new = CreateAgent(1, 1, "init", (("v", 7),), None)
    answer = _answer((_OWNER, [_introduction(), new]), (_OTHER, [call]), (_OWNER, [PushValue(7, False, "late")]))
    assert asyncio.run(answer) == [CallResult(1, 2)]
