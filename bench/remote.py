"""Agents on servers compared with Ray's actors, AgentScope and plain gRPC: round trips, many calls, starts, many agents."""

from __future__ import annotations

import functools
import statistics
from collections import deque
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.measure import Contender, Measurement, Run, Target
from bench.peers import agentscope_run, bare_grpc, ray_actor
from bench.processes import run_script
from paragent import AgentBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]

_RAY = "Ray actor"
_AGENTSCOPE = "AgentScope 0.1.6"
_GRPC = "bare gRPC, unary"


class Echo(AgentBase):
    def reply(self, x: Any = None) -> Any:
        return x

    def size(self, x: Any) -> int:
        return len(x)


@contextmanager
def _ours() -> Iterator[Any]:
    """An agent in a child process; `call(method, argument)` returns a function that waits for the answer."""
    agent: Any = Echo("echo", to_dist=True)  # type: ignore[call-arg]

    def call(method: str, argument: Any) -> Callable[[], Any]:
        result: Callable[[], Any] = getattr(agent, method)(argument).result
        return result

    yield call
    agent.stop().result(5)


def _round_trip(peer: Callable[[], AbstractContextManager[Any]]) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with peer() as call:
            payload = "x" * 100

            def run() -> float:
                times = []
                for _ in range(size):
                    started = perf_counter()
                    assert call("reply", payload)() == payload
                    times.append(perf_counter() - started)
                return statistics.median(times) * 1e6

            yield run

    return opened


def _rate(
    peer: Callable[[], AbstractContextManager[Any]], outstanding: int, method: str = "reply", payload: Any = "x" * 100
) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with peer() as call:

            def run() -> float:
                waiting: deque[Callable[[], Any]] = deque()
                started = perf_counter()
                for _ in range(size):
                    if len(waiting) >= outstanding:
                        waiting.popleft()()
                    waiting.append(call(method, payload))
                while waiting:
                    waiting.popleft()()
                return size / (perf_counter() - started)

            yield run

    return opened


def _script(name: str, field: int) -> Callable[[int], AbstractContextManager[Run]]:
    """A separate program that prints numbers; `field` is the index of the one to report."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        yield lambda: float(run_script(name, size).split()[field])

    return opened


def _agentscope(outstanding: int) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        yield functools.partial(agentscope_run, outstanding, min(size, 400))

    return opened


def _many_calls(outstanding: int, size: int, times_ray: float, agentscope: bool) -> Measurement:
    peers = [
        Contender(_RAY, _rate(ray_actor, outstanding), needs="ray"),
        Contender(_GRPC, _rate(bare_grpc, outstanding)),
    ]
    targets = [Target("at least", times_ray, times=_RAY)]
    if agentscope:
        peers.append(Contender(_AGENTSCOPE, _agentscope(outstanding)))
        targets.append(Target("at least", 40.0, times=_AGENTSCOPE))
    return Measurement(
        name=f"remote-{outstanding}",
        title=f"Remote calls, {outstanding:,} in flight",
        question=f"How many trivial replies of 100 B per second with {outstanding:,} calls in flight?",
        unit="calls/s",
        size=size,
        quick_size=size // 10,
        contenders=(Contender("paragent", _rate(_ours, outstanding)), *peers),
        targets=tuple(targets),
    )


MEASUREMENTS = (
    Measurement(
        name="remote-round-trip",
        title="Remote call, round trip",
        question="How long does one trivial reply of 100 B take?",
        unit="µs",
        size=1_000,
        quick_size=100,
        contenders=(
            Contender("paragent", _round_trip(_ours)),
            Contender(_RAY, _round_trip(ray_actor), needs="ray"),
            Contender(_GRPC, _round_trip(bare_grpc)),
        ),
        targets=(Target("at most", 0.7, times=_RAY),),
    ),
    _many_calls(64, 20_000, 12.0, agentscope=True),
    _many_calls(1_024, 20_000, 20.0, agentscope=False),
    Measurement(
        name="remote-1MB",
        title="Remote calls with 1 MB",
        question="How many calls per second with an argument of 1 MB, 4 in flight?",
        unit="calls/s",
        size=200,
        quick_size=20,
        contenders=(
            Contender("paragent", _rate(_ours, 4, "size", b"x" * 1_000_000)),
            Contender(_RAY, _rate(ray_actor, 4, "size", b"x" * 1_000_000), needs="ray"),
        ),
        targets=(Target("at least", 1.0, times=_RAY),),
    ),
    Measurement(
        name="remote-start",
        title="Start of five agents",
        question="From the first `to_dist` of a program, how long until five child agents have replied?",
        unit="s",
        size=5,
        quick_size=5,
        contenders=(Contender("paragent", _script("five_agents.py", 0)),),
        targets=(Target("at most", 0.25),),
    ),
    Measurement(
        name="remote-start-more",
        title="Start of five more agents",
        question="How long until five more agents, each in its own process, have replied?",
        unit="s",
        size=5,
        quick_size=5,
        contenders=(Contender("paragent", _script("five_agents.py", 1)),),
        targets=(Target("at most", 0.08),),
    ),
    Measurement(
        name="remote-exit",
        title="Exit of a program with agents",
        question="How long does such a program take to exit, including its six child servers?",
        unit="s",
        size=5,
        quick_size=5,
        contenders=(Contender("paragent", _script("five_agents.py", 2)),),
        targets=(Target("at most", 0.3),),
    ),
    Measurement(
        name="remote-create",
        title="Creation of agents",
        question="How many agents per second can one server create?",
        unit="agents/s",
        size=10_000,
        quick_size=1_000,
        contenders=(Contender("paragent", _script("many_agents.py", 0)),),
    ),
    Measurement(
        name="remote-bytes",
        title="Memory of one of 10,000 agents",
        question="How much server memory does each of 10,000 agents take?",
        unit="bytes",
        size=10_000,
        quick_size=1_000,
        contenders=(Contender("paragent", _script("many_agents.py", 1)),),
    ),
    Measurement(
        name="remote-broadcast",
        title="Message to 10,000 agents",
        question="How long does a message to each of 10,000 agents of one server take, with all answers?",
        unit="s",
        size=10_000,
        quick_size=1_000,
        contenders=(Contender("paragent", _script("many_agents.py", 2)),),
    ),
)
