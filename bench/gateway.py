"""The model gateway: added time and CPU time of a call, and calls per second, beside a direct connection and verifiers.

The endpoint, the agents and the gateways share the two cores. The endpoint answers every request at once with the same bytes, and
the agents have prepared their requests, so that most of the CPU time is that of the gateway (`gateway-share`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.measure import Contender, Measurement, Run, Target
from bench.peers.environments import peer_program
from bench.scripts.gateway_load import TURNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["MEASUREMENTS"]

_SCRIPTS = Path(__file__).parent / "scripts"
_WORKERS = 2
_LIMIT = 300.0
"""Seconds for the calls of one sample, which take a few."""


@contextmanager
def _program(name: str, python: str = sys.executable, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A program that ends when its stdin is closed."""
    command = [python, str(_SCRIPTS / name)]
    environment = os.environ | variables
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str], given: str = "") -> str:
    """Write a line to a program and return the line that it prints."""
    assert process.stdin is not None
    assert process.stdout is not None
    if given:
        process.stdin.write(f"{given}\n")
        process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"{process.args[-1]} ended with status {process.wait(10)}")  # type: ignore[index]
    return line


def _load(targets: list[Any], *, streamed: bool = False, one_by_one: bool = False) -> dict[str, float]:
    """Run the agents and return what they measured."""
    given = json.dumps({"targets": targets, "streamed": streamed, "one_by_one": one_by_one})
    command = [sys.executable, str(_SCRIPTS / "gateway_load.py")]
    ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if ended.returncode:
        raise RuntimeError((ended.stderr.strip().splitlines() or ["no error output"])[-1])
    measured: dict[str, float] = json.loads(ended.stdout)
    return measured


def _cpu(processes: list[subprocess.Popen[str]]) -> float:
    times = [psutil.Process(one.pid).cpu_times() for one in processes]
    return sum(one.user + one.system for one in times)


class _Setting:
    """The endpoint, and the gateways between it and the agents; without gateways the agents call the endpoint."""

    def __init__(self, stack: ExitStack, script: str, python: str) -> None:
        self.endpoint = stack.enter_context(_program("gateway_endpoint.py"))
        port = int(_line(self.endpoint))
        self._direct = [port, "/v1/chat/completions", "any"]
        variables = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "any"}
        workers = range(_WORKERS if script else 0)
        self.gateways = [stack.enter_context(_program(script, python, **variables)) for _ in workers]

    def targets(self, rollouts: int) -> list[Any]:
        """Return the addresses of new rollouts, those of the gateways in turns."""
        if not self.gateways:
            return [self._direct] * rollouts
        number = -(-rollouts // len(self.gateways))
        lists = [json.loads(_line(one, str(number)))["targets"] for one in self.gateways]
        return [target for pair in zip(*lists, strict=True) for target in pair][:rollouts]

    def added(self, rollouts: int) -> float:
        """Return the milliseconds that a call takes longer than a direct one, one call at a time."""
        direct = _load([self._direct] * rollouts, one_by_one=True)["median"]
        return 1000 * (_load(self.targets(rollouts), one_by_one=True)["median"] - direct)

    def rate(self, rollouts: int, streamed: bool) -> float:
        """Return the calls per second of concurrent rollouts."""
        return rollouts * TURNS / _load(self.targets(rollouts), streamed=streamed)["seconds"]

    def cpu(self, rollouts: int) -> float:
        """Return the milliseconds of CPU time of the gateways for a call."""
        targets, before = self.targets(rollouts), _cpu(self.gateways)
        _load(targets, streamed=True)
        return 1000 * (_cpu(self.gateways) - before) / (rollouts * TURNS)

    def share(self, rollouts: int) -> float:
        """Return the part of the CPU time, in per cent, that agents and endpoint use."""
        targets, before, others = self.targets(rollouts), _cpu(self.gateways), _cpu([self.endpoint])
        used = _load(targets, streamed=True)["cpu"] + _cpu([self.endpoint]) - others
        return 100 * used / (used + _cpu(self.gateways) - before)


def _contender(name: str, script: str, sample: Callable[[_Setting, int], float], peer: str = "") -> Contender:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        python = str(peer_program(peer)) if peer else sys.executable
        with ExitStack() as stack:
            setting = _Setting(stack, script, python)
            yield lambda: sample(setting, size)

    opener: Callable[[int], AbstractContextManager[Run]] = opened
    return Contender(name, opener)


def _contenders(sample: Callable[[_Setting, int], float], *, direct: bool = True) -> tuple[Contender, ...]:
    contenders = (
        _contender("paragent", "gateway_paragent.py", sample),
        _contender("verifiers", "gateway_verifiers.py", sample, peer="verifiers"),
    )
    return (*contenders, replace(_contender("no gateway", "", sample), reference=True)) if direct else contenders


MEASUREMENTS = (
    Measurement(
        name="gateway-added",
        title="Added time of a call",
        question="How much longer does a call through the gateway take than a direct one, one call at a time?",
        unit="ms",
        size=8,
        quick_size=2,
        contenders=_contenders(_Setting.added, direct=False),
        targets=(Target("at most", 3.0), Target("at most", 1.0, "verifiers")),
    ),
    Measurement(
        name="gateway-rate",
        title="Calls through the gateway",
        question="How many calls per second do 200 rollouts make?",
        unit="calls/s",
        size=200,
        quick_size=20,
        contenders=_contenders(lambda setting, size: setting.rate(size, streamed=False)),
        targets=(Target("at least", 2000), Target("at least", 1.0, "verifiers")),
    ),
    Measurement(
        name="gateway-rate-streamed",
        title="Streamed calls",
        question="How many streamed calls per second do 200 rollouts make?",
        unit="calls/s",
        size=200,
        quick_size=20,
        contenders=_contenders(lambda setting, size: setting.rate(size, streamed=True)),
        targets=(Target("at least", 2000), Target("at least", 1.0, "verifiers")),
    ),
    Measurement(
        name="gateway-cpu",
        title="CPU time of a streamed call",
        question="How much CPU time does a gateway use for a streamed call?",
        unit="ms",
        size=200,
        quick_size=20,
        contenders=_contenders(_Setting.cpu, direct=False),
        warm_up=False,
        most_rounds=2,
    ),
    Measurement(
        name="gateway-share",
        title="CPU time of agents and endpoint",
        question="Which part of the CPU time do agents and endpoint use?",
        unit="%",
        size=200,
        quick_size=20,
        contenders=tuple(replace(one, reference=True) for one in _contenders(_Setting.share, direct=False)),
        warm_up=False,
        most_rounds=1,
    ),
)
