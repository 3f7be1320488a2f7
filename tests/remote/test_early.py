"""Messages that reach a server before the agent that they concern: the agent is created over another connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paragent import RpcAgentServerLauncher
from paragent.remote.protocol import CallMethod, CallResult, CreateAgent, PushValue
from tests.remote.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clients() -> Iterator[tuple[RawClient, RawClient]]:
    """Two clients of one server: the owner of an agent with the number 2, and another one that calls it."""
    with RpcAgentServerLauncher() as server:
        owner, other = RawClient(server.address), RawClient(server.address)
        yield owner, other
        owner.close()
        other.close()


def test_a_call_waits_for_an_agent_that_is_created_later(clients: tuple[RawClient, RawClient]) -> None:
    owner, other = clients
    other.say([CallMethod(1, (owner.session, 2), "add", (1,))])
    assert other.ask(CallMethod, 2, 1, "add", (5,)) == CallResult(2, 6), "the server has read the call above"
    owner.say([CreateAgent(2, 1, "init", ("late",))])
    assert other.read(1) == [CallResult(1, 2)]


def test_a_call_waits_for_an_agent_whose_constructor_waits_for_an_argument(
    clients: tuple[RawClient, RawClient],
) -> None:
    owner, other = clients
    owner.say([CreateAgent(2, 1, "init", (("v", 7),))])
    assert owner.ask(CallMethod, 1, 1, "add", (5,)) == CallResult(1, 6), "the server has read the message above"
    other.say([CallMethod(1, (owner.session, 2), "add", (1,))])
    assert other.ask(CallMethod, 2, 1, "add", (5,)) == CallResult(2, 6), "the server has read the call above"
    owner.say([PushValue(7, False, "late")])
    assert other.read(1) == [CallResult(1, 2)]
