"""Validation of settings: invalid durations, limits and counts are rejected everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent import MachineSettings, RunConfig, Task, VMPoolManager
from paragent._internal.validation import (
    MOST_SECONDS,
    at_least,
    check_fields,
    integer,
    number,
    one_of,
    optional,
    port,
    reject_unknown,
    seconds,
)
from paragent.envs import open_environment
from paragent.errors import ConfigError
from paragent.machines.state_machine import PoolStateMachine
from paragent.remote.launcher import RpcAgentServerLauncher
from paragent.remote.placement import DistConf
from paragent.rollout.config import RolloutConfig, all_settings
from paragent.rollout.keywords import RolloutKeywords

NEVER = [math.nan, math.inf, -math.inf, -1, -0.5, True, 1e300]
"""Values that are not durations."""
POOL = VMPoolManager("process", 1, name="numbers")


def ask(duration: Any = 10.0, limit: Any = None) -> None:
    PoolStateMachine(1).request("r", "holder", duration, limit)


PLACES: dict[str, Callable[[Any], Any]] = {
    "RunConfig(timeout=)": lambda value: RunConfig(timeout=value),
    "Task(timeout=)": lambda value: Task(input=1, timeout=value),
    "to_dist(timeout=)": lambda value: DistConf(timeout=value),
    "RpcAgentServerLauncher(lease=)": lambda value: RpcAgentServerLauncher(host="127.0.0.1", port=0, lease=value),
    "PoolStateMachine.request(duration)": lambda value: ask(duration=value),
    "PoolStateMachine.request(limit)": lambda value: ask(limit=value),
    "pool.lease(duration=)": lambda value: POOL.lease(duration=value),
    "pool.lease(limit=)": lambda value: POOL.lease(limit=value),
    "pool.lease(timeout=)": lambda value: POOL.lease(timeout=value),
    "pool.allocate(duration=)": lambda value: POOL.allocate(duration=value),
    "pool.drain(timeout=)": lambda value: POOL.drain(timeout=value),
    "pool.wait_until_free(timeout=)": lambda value: POOL.wait_until_free(1, value),
    "MachineSettings(boot_seconds=)": lambda value: MachineSettings(boot_seconds=value),
    "RolloutConfig(timeout=)": lambda value: RolloutConfig(timeout=value),
    "RolloutConfig(pause=)": lambda value: RolloutConfig(pause=value),
    "py cell_limit": lambda value: open_environment("py", {"cell_limit": value}),
    "osworld pause": lambda value: open_environment("osworld", {"pause": value}),
    "osworld settle": lambda value: open_environment("osworld", {"settle": value}),
}


@pytest.mark.parametrize("value", NEVER)
@pytest.mark.parametrize("place", list(PLACES))
def test_invalid_durations_are_rejected_everywhere(place: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="must be"):
        PLACES[place](value)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1"])
def test_invalid_durations_from_the_command_line_are_rejected(text: str) -> None:
    for place in ("RolloutConfig(timeout=)", "RolloutConfig(pause=)", "py cell_limit"):
        with pytest.raises(ConfigError, match="must be"):
            PLACES[place](text)
    with pytest.raises(ConfigError, match="temperature"):
        RolloutConfig(temperature=float("nan"))


def test_invalid_durations_of_leases_from_the_network_are_rejected() -> None:
    given: list[Any] = ["10", None, [], {}, math.nan]
    for value in given:
        with pytest.raises(ConfigError, match="duration of a lease"):
            ask(duration=value)


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_seconds_accepts_only_positive_finite_numbers(value: float) -> None:
    if math.isfinite(value) and 0 < value <= MOST_SECONDS:
        assert seconds(value, "x") == seconds(value, "x", zero=True) == value
    else:
        with pytest.raises(ConfigError, match="x must be a number of seconds above 0"):
            seconds(value, "x")


def test_integers_and_numbers_are_checked() -> None:
    assert seconds(0, "x", zero=True) == 0
    assert integer(3, "x", least=3) == 3
    assert number(-1.5, "x") == -1.5
    for value in (2, 3.0, True, "3", None, math.nan):
        with pytest.raises(ConfigError, match="an integer of at least 3"):
            integer(value, "x", least=3)
    for value in (math.nan, math.inf, "1", True):
        with pytest.raises(ConfigError, match="finite"):
            number(value, "x")
    for size in (math.nan, 1.5, "2", True, 0):
        with pytest.raises(ConfigError, match="size"):
            PoolStateMachine(size)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sample:
    size: Any = 1
    limit: Any = None
    mode: Any = "fast"
    port: Any = 80

    def __post_init__(self) -> None:
        checks = {"size": at_least(1), "limit": optional(seconds), "mode": one_of("fast", "slow"), "port": port}
        check_fields(self, checks, lambda name: f"--{name}")


def test_fields_are_checked_and_converted() -> None:
    sample = Sample(limit=3)
    assert type(sample.limit) is float
    for settings in ({"size": 0}, {"limit": -1}, {"mode": "slowly"}, {"port": 70_000}, {"port": True}):
        [name] = settings
        with pytest.raises(ConfigError, match=f"--{name} must be .*, not {settings[name]!r}"):
            Sample(**settings)
    with pytest.raises(ConfigError, match="above 0, not '3'"):
        Sample(limit="3")
    with pytest.raises(ConfigError, match="above 0 or None, not '3'"):
        optional(seconds)("3", "limit")


def test_an_unknown_name_gets_a_suggestion() -> None:
    reject_unknown("docker", "option", ["image"], ["image", "platform"])
    with pytest.raises(
        ConfigError, match=r"docker has no option 'imag', did you mean 'image'\? The options are: image, p"
    ):
        reject_unknown("docker", "option", ["imag"], ["platform", "image"])
    with pytest.raises(ConfigError, match=r"process has no option 'x'\. There are no options"):
        reject_unknown("process", "option", ["x"], [])


def test_keyword_settings_of_rollouts_are_the_settings_and_sections() -> None:
    """Python cannot derive them from the sections, so `RolloutKeywords` lists them."""
    kinds: dict[type, str] = {Path: "str | PathLike[str]", list: "Sequence[str]", dict: "Mapping[str, Any]"}
    sections = {name: f"{section} | Mapping[str, Any]" for name, section in RolloutConfig.__annotations__.items()}
    expected = dict(sections)
    for setting in all_settings():
        kind = "float | str" if setting.duration else kinds.get(setting.kind, setting.kind.__name__)
        section = f" | {sections[setting.name]}" if setting.name in sections else ""
        expected[setting.name] = f"{kind}{section}{' | None' if setting.optional else ''}"
    assert {name: kind.__forward_arg__ for name, kind in RolloutKeywords.__annotations__.items()} == expected
