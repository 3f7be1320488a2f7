"""Lifetime of remote agents: an agent is freed after its proxy was dropped and all its calls have ended."""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import paragent
from paragent import AgentBase, RpcAgentServerLauncher, ServerLost, concurrent
from paragent.remote.link import data_link
from tests.remote.agents import Moderator, Worker
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

_TIMES = 10
_SECONDS = 30.0
_KINDS = ["plain", "sync", "quick", "prompt", "asynchronous", "stream", "async_stream"]


class Inherits(AgentBase):
    """Has calls of every kind, and the constructor of `AgentBase`."""

    def plain(self) -> str:
        time.sleep(0.005)
        return self.name

    @concurrent
    def sync(self) -> str:
        time.sleep(0.005)
        return self.name

    @concurrent
    def quick(self) -> str:
        return self.name

    @concurrent
    async def prompt(self) -> str:
        return self.name

    @concurrent
    async def asynchronous(self) -> str:
        await asyncio.sleep(0.005)
        return self.name

    @concurrent
    def stream(self) -> Iterator[str]:
        for _ in range(3):
            time.sleep(0.002)
            yield self.name

    @concurrent
    async def async_stream(self) -> AsyncIterator[str]:
        for _ in range(3):
            await asyncio.sleep(0.002)
            yield self.name

    @concurrent
    async def endless(self) -> AsyncIterator[str]:
        while True:
            yield self.name
            await asyncio.sleep(0)

    @concurrent
    def later(self, value: Any, path: str = "") -> Any:
        if path:
            wait_until(Path(path).exists, _SECONDS)
        return self.name, value


class Constructs(Inherits):
    """As above, with a constructor that takes time."""

    def __init__(self, name: str, seconds: float = 0.005) -> None:
        super().__init__(name)
        time.sleep(seconds)


# The classes as their clients use them: type checkers know neither `to_dist` nor that methods return results.
inherits: Any = Inherits
constructs: Any = Constructs


@pytest.fixture(params=["child", "server"])
def place(request: pytest.FixtureRequest, server: RpcAgentServerLauncher) -> Any:
    return True if request.param == "child" else {"host": server.host, "port": server.port}


@pytest.fixture
def other_place(own_server: RpcAgentServerLauncher) -> Any:
    return {"host": own_server.host, "port": own_server.port}


def _used(outcome: Any) -> list[str]:
    return list(outcome) if not isinstance(outcome, paragent.Result) else [outcome.result(_SECONDS)] * 3


@pytest.mark.parametrize("cls", [Inherits, Constructs])
@pytest.mark.parametrize("kind", _KINDS)
def test_a_call_of_a_dropped_proxy_completes(kind: str, cls: Any, place: Any) -> None:
    outcomes = [getattr(cls(f"a{number}", to_dist=place), kind)() for number in range(_TIMES)]
    assert [_used(outcome) for outcome in outcomes] == [[f"a{number}"] * 3 for number in range(_TIMES)]


@pytest.mark.parametrize("kind", _KINDS)
def test_a_call_that_starts_before_the_proxy_is_dropped_completes(kind: str, place: Any) -> None:
    agents = [constructs(f"a{number}", to_dist=place) for number in range(_TIMES)]
    assert [agent.quick().result(_SECONDS) for agent in agents] == [f"a{number}" for number in range(_TIMES)]
    outcomes = [getattr(agent, kind)() for agent in agents]
    del agents
    gc.collect()
    assert [_used(outcome) for outcome in outcomes] == [[f"a{number}"] * 3 for number in range(_TIMES)]


def test_calls_of_all_kinds_on_one_dropped_proxy_complete(place: Any) -> None:
    for _ in range(_TIMES):
        agent = constructs("a", to_dist=place)
        outcomes = [getattr(agent, kind)() for kind in _KINDS * 2]
        del agent
        assert [_used(outcome) for outcome in outcomes] == [["a"] * 3] * len(outcomes)


def test_a_call_that_waits_for_an_argument_completes_after_its_proxy_was_dropped(place: Any, mark: Path) -> None:
    source = Worker("source", to_dist=place)
    outcome = constructs("a", to_dist=place).later(source.block_until(str(mark)))
    other = inherits("b", to_dist=place).quick()
    assert other.result(_SECONDS) == "b"
    mark.touch()
    assert outcome.result(_SECONDS) == ("a", str(mark))


def test_an_async_stream_can_be_read_after_its_proxy_was_dropped(place: Any) -> None:
    items = inherits("a", to_dist=place).endless()
    assert [next(items) for _ in range(500)] == ["a"] * 500
    items.close()


def _agents(server: RpcAgentServerLauncher) -> int:
    link = data_link(server.address, None)
    return int(link.control("info").result(_SECONDS)["agents"])


def test_dropped_agents_are_freed_after_their_calls(
    own_server: RpcAgentServerLauncher, eventually: Callable[[Callable[[], bool]], None], mark: Path
) -> None:
    place = {"host": own_server.host, "port": own_server.port}
    outcomes = [constructs("a", to_dist=place).later(1, str(mark)) for _ in range(3)]
    streams = [constructs("a", to_dist=place).endless() for _ in range(3)]
    dropped = [constructs("a", to_dist=place) for _ in range(3)]
    del dropped
    assert [next(items) for items in streams] == ["a"] * 3
    eventually(lambda: _agents(own_server) == 6)
    mark.touch()
    assert [outcome.result(_SECONDS) for outcome in outcomes] == [("a", 1)] * 3
    eventually(lambda: _agents(own_server) == 3)
    for items in streams:
        items.close()
    eventually(lambda: _agents(own_server) == 0)


class Caller(AgentBase):
    """Uses the agent of another client."""

    @concurrent
    def call(self, other: Any, path: str) -> Any:
        return other.later(self.name, path)

    @concurrent
    async def call_both(self, other: Any, path: str) -> Any:
        return [other.later(self.name, path), other.asynchronous()]


def test_calls_of_other_agents_complete_after_the_owner_dropped_its_proxy(
    server: RpcAgentServerLauncher, mark: Path
) -> None:
    place = {"host": server.host, "port": server.port}
    callers: list[Any] = [Caller("child", to_dist=True), Caller("server", to_dist=place)]
    member = constructs("member", to_dist=place)
    outcomes = [caller.call(member, str(mark)) for caller in callers]
    both = [caller.call_both(member, str(mark)) for caller in callers]
    del member
    mark.touch()
    assert [outcome.result(_SECONDS) for outcome in outcomes] == [("member", "child"), ("member", "server")]
    assert [outcome.result(_SECONDS)[1] for outcome in both] == ["member", "member"]


@pytest.mark.parametrize("restricted", [False, True], ids=["accepts code", "restricted"])
def test_proxies_in_arguments_live_until_the_call_has_ended(restricted: bool) -> None:
    """Also those inside a container, and those that a function drops when it returns the result."""
    with RpcAgentServerLauncher(custom_agent_classes=[Moderator, Worker] if restricted else []) as launcher:
        place = {"host": launcher.host, "port": launcher.port}
        moderator: Any = Moderator([], to_dist=place)

        def ask() -> Any:
            members = [Worker(f"w{number}", to_dist=place) for number in range(3)]
            return moderator.ask_last(members, 1)

        for _ in range(_TIMES):
            assert ask().result(_SECONDS).content == 1
            assert moderator.ask(Worker("w", to_dist=place), 2).result(_SECONDS) == 2


def test_proxies_in_arguments_of_child_processes_live_until_the_call_has_ended() -> None:
    moderator: Any = Moderator([], to_dist=True)
    for _ in range(_TIMES):
        assert moderator.ask_last([Worker("w", to_dist=True)], 1).result(_SECONDS).content == 1


class Keeper(AgentBase):
    """Stores the proxy of another agent."""

    kept: Any = None

    def keep(self, member: Any) -> Any:
        self.kept = member
        return member.quick()

    def use_once(self, member: Any) -> Any:
        return member.quick()

    def use_kept(self) -> Any:
        return self.kept.quick()


def test_a_stored_copy_keeps_its_agent_when_another_copy_is_dropped(
    own_server: RpcAgentServerLauncher, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    keeper: Any = Keeper(to_dist=True)
    member = inherits("member", to_dist={"host": own_server.host, "port": own_server.port})
    assert keeper.keep(member).result(_SECONDS) == "member"
    assert keeper.use_once(member).result(_SECONDS) == "member"
    del member
    assert keeper.use_kept().result(_SECONDS) == "member"
    del keeper
    eventually(lambda: _agents(own_server) == 0)


def test_a_copy_in_the_same_program_keeps_its_agent(place: Any) -> None:
    original = inherits("a", to_dist=place)
    copies = [pickle.loads(pickle.dumps(original)) for _ in range(2)]
    assert [copy.quick().result(_SECONDS) for copy in copies] == ["a", "a"]
    del copies[1]
    assert original.quick().result(_SECONDS) == "a"
    del original
    assert copies[0].quick().result(_SECONDS) == "a"


def test_a_proxy_of_a_lost_server_fails_a_call_at_once(own_server: RpcAgentServerLauncher) -> None:
    """The server that gets it would wait for a client that may still create the agent."""
    member: Any = Worker("w", to_dist={"host": own_server.host, "port": own_server.port})
    assert member.add(1).result(_SECONDS) == 2
    own_server.shutdown()
    assert isinstance(member.add(1).exception(_SECONDS), ServerLost)
    moderator: Any = Moderator([], to_dist=True)
    for outcome in (moderator.ask(member, 1), moderator.ask_last([member], 1)):
        with pytest.raises(ServerLost, match="create new ones"):
            outcome.result(_SECONDS)


def test_classes_that_were_sent_by_value_are_passed_on(place: Any, other_place: Any) -> None:
    """Agents and results of classes of a script or a notebook are used on servers that the program did not send them to."""

    class Opinion:
        def __init__(self, text: str) -> None:
            self.text = text

    class Taker(AgentBase):
        def take(self, opinion: Any) -> Any:
            return opinion.text, opinion

    class Giver(AgentBase):
        def give(self, large: bool = False) -> Any:
            return Opinion("x" * (2 << 20) if large else "x")

        def make(self, target: Any) -> Any:
            return Taker(to_dist=target).take(Opinion("made"))

        def make_own(self, target: Any) -> Any:
            return Giver(to_dist=target).give()

    giver: Any = Giver(to_dist=place)
    taker: Any = Worker("w", to_dist=other_place)  # its server has none of these classes
    passed = taker.echo(giver.give()).result(_SECONDS)
    assert type(passed) is Opinion
    assert taker.echo([giver.give()]).result(_SECONDS)[0].text == "x"
    large = giver.give(True)
    paragent.wait([large], _SECONDS)
    assert len(taker.echo(large).result(_SECONDS).text) == 2 << 20
    text, opinion = giver.make(other_place).result(_SECONDS)
    assert (text, type(opinion)) == ("made", Opinion)
    assert type(giver.make_own(other_place).result(_SECONDS)) is Opinion
