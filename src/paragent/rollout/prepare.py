"""From a configuration to a run that could start: everything checked, nothing written yet."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id
from paragent._internal.registry import import_object
from paragent._internal.threads import run_to_the_end
from paragent.config import RunConfig, usable_cores
from paragent.engines import open_engine
from paragent.envs import ENVIRONMENTS, Environment, SharedResources, environment_class
from paragent.errors import ConfigError, MissingExtra, UnknownName
from paragent.models import ModelSettings
from paragent.models.base import MODELS
from paragent.models.credentials import NO_KEY, endpoint_from_environment
from paragent.rollout.config import is_secret
from paragent.rollout.dataset import Benchmark, read_benchmark
from paragent.rollout.machines import DEFAULT_PROVIDER, machine_settings, served_place
from paragent.rollout.resources import RolloutSettings
from paragent.rollout.worker import check_agent
from paragent.scorers import SCORERS

if TYPE_CHECKING:
    from paragent.machines import MachineSettings
    from paragent.rollout.config import RolloutConfig

__all__ = ["Prepared", "play_settings", "prepare", "read_settings", "with_data_folder"]


def read_settings(path: Path) -> dict[str, Any]:
    """Return what a file of settings says.

    Raises:
        ConfigError: there is no such file, or it cannot be read as a table of settings.
        MissingExtra: it is YAML, and the package for it is not installed.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            settings = json.loads(text)
        elif path.suffix == ".toml":
            settings = tomllib.loads(text)
        else:
            settings = _yaml(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(f"{path} must have one `key: value` for each setting")
    return settings


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("a YAML file", "rollout", "yaml") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_FLAGS = ("kb", "sandbox", "headless")
"""Settings of the run that are options of some environments."""
_DESKTOP_FLAGS = (
    "action_space", "client_password", "observation_type", "pause", "record", "screen_height", "screen_width",
)  # fmt: skip
"""Settings of the run that an environment of desktops is told; others with an option of such a name have their own default."""
_FILES = ("kb", "site")
"""Options that name files whose content decides the results."""
_CHECK_LIMIT = 120.0
"""Seconds for an environment to find out whether it can work: building an index of a large knowledge base is the longest."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that could start."""

    config: RolloutConfig
    benchmark: Benchmark
    play: RolloutSettings
    path: Path
    identity: str
    prices: dict[str, dict[str, float]] | None
    machines: MachineSettings | None = None
    """What machines are like, if the environment needs some."""

    @property
    def engine(self) -> RunConfig:
        """How the engine is set up."""
        workers, concurrency = _share(self.config)
        return RunConfig(
            engine_name=self.config.engine,
            worker_num=workers,
            concurrency=concurrency,
            job_name=self.path.name,
            in_local=self.config.engine_address is None,
            engine_options=self.config.engine_options,
        )


def prepare(config: RolloutConfig) -> Prepared:
    """Check a configuration and all that it names.

    Raises:
        UsageError: something is wrong with it; the message says what to change.
    """
    if config.data is None:
        raise ConfigError("--data is missing: the file with the tasks")
    environment, options = _world(config)
    located = with_data_folder(options, environment, config.data)
    benchmark = read_benchmark(
        config.data,
        limit=config.limit,
        task_ids=config.task_id,
        lacking=environment(located).missing_requirements,
        skip=config.skip_unsupported,
        load_tasks=environment.load_tasks,
    )
    machines = _machines(config, environment) if environment(options).needs_machine else None
    if machines is None and (config.use_vm_pool or config.pool_address):
        raise ConfigError(
            f"the environment {environment.name!r} needs no machine: leave out --use-vm-pool, --pool-address"
        )
    identity = _identity(config, benchmark, options, needs_machine=machines is not None)
    name = config.run_name or f"{config.mode or environment.name}-{_slug(config.model)}-{identity[:10]}"
    path = config.output_dir / name
    play = _play(config, located, f"{path.resolve()}:{os.getpid()}", live=str(path.resolve() / "live"))
    _check(environment, options)
    prepared = Prepared(config, benchmark, play, path, identity, _prices(config), machines)
    open_engine(prepared.engine).close()  # constructing one starts nothing, and refuses what is not there
    return prepared


def play_settings(config: RolloutConfig) -> RolloutSettings:
    """Return what playing single tasks needs; of a configuration only that counts. Machines are those at `pool_address`.

    Raises:
        UsageError: something is wrong with it; the message says what to change.
    """
    environment, options = _world(config)
    play = _play(config, options, new_id("alone"))
    machines = served_place(config)
    if environment(options).needs_machine and machines is None:
        raise ConfigError(f"the environment {environment.name!r} needs a machine: say where a pool is, pool_address=")
    _check(environment, options)
    return replace(play, machines=machines)


def _world(config: RolloutConfig) -> tuple[type[Environment], dict[str, Any]]:
    """Return the environment and its options, having checked all that a user may have written or misspelt.

    Raises:
        UsageError: something is not there.
    """
    _check_own(config)
    environment = _environment(config)
    if config.agent:
        check_agent(import_object(config.agent), environment)
    options = _options(config, environment)
    own = {environment.metric, *environment.own_scores}
    if config.metric and ":" not in config.metric and config.metric not in own:
        if config.metric not in SCORERS.names():
            raise UnknownName("metric", config.metric, own.union(SCORERS.names()))
        SCORERS.load(config.metric)
    return environment, options


def _play(config: RolloutConfig, options: dict[str, Any], run: str, live: str | None = None) -> RolloutSettings:
    model = _model(config, config.model)
    return RolloutSettings(
        run=run,
        environment=config.env or config.mode,
        options=options,
        model=model,
        judge=_model(config, config.judge_model) if config.judge_model else model,
        agent=config.agent,
        metric=config.metric,
        max_turns=config.max_turns,
        max_retries=config.max_retries,
        timeout=config.timeout,
        live=live,
        driver=os.getpid(),
    )


def _machines(config: RolloutConfig, environment: type[Environment]) -> MachineSettings:
    """Check which machines are asked for, and return what they are like.

    Raises:
        UsageError: there are no such machines.
    """
    from paragent.machines.providers import provider_class

    if not config.pool_address:
        provider_class(config.provider_name or DEFAULT_PROVIDER)
    return machine_settings(config, environment)


def _check_own(config: RolloutConfig) -> None:
    """Check that what the user has written can be imported.

    Raises:
        ConfigError: it cannot.
    """
    for name in ("env", "agent", "metric"):
        location = getattr(config, name)
        if location and (":" in location or name == "agent"):  # the others may be names of what is here
            try:
                import_object(location)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"--{name} {location}: {error}. Modules are looked for in this folder and in PYTHONPATH"
                ) from error


def _environment(config: RolloutConfig) -> type[Environment]:
    if config.env:
        return environment_class(config.env)
    if not config.mode:
        raise ConfigError(f"--mode is missing; it is one of: {', '.join(ENVIRONMENTS.names())}")
    return environment_class(config.mode)


def _options(config: RolloutConfig, environment: type[Environment]) -> dict[str, Any]:
    """Return what the environment is told; paths are made absolute, for workers may be elsewhere."""
    known = environment.option_names()
    options: dict[str, Any] = dict(config.env_option)
    for name in _FLAGS:
        value = getattr(config, name)
        if value is None or value is False:
            continue
        if name not in known:
            if name == "headless":
                continue
            raise ConfigError(f"--{name} is no option of the environment {environment.name!r}")
        options[name] = str(value.resolve()) if isinstance(value, Path) else value
    if set(_DESKTOP_FLAGS) <= set(known):
        options = {name: getattr(config, name) for name in _DESKTOP_FLAGS} | options
    environment.read_options(options)
    return options


def with_data_folder(options: dict[str, Any], environment: type[Environment], data: Path) -> dict[str, Any]:
    """Return the options with the folder whose files tasks may read: that of the data, unless the user names another.

    It is not part of a run's identity: a benchmark that was moved is the same benchmark. A folder that holds all of the
    user's files is not taken unless it is named; then tasks may read no file.
    """
    if "data_folder" not in environment.option_names():
        return options
    if named := options.get("data_folder"):
        return {**options, "data_folder": str(Path(named).resolve())}
    folder = data.parent.resolve()
    return options if _is_too_wide(folder) else {**options, "data_folder": str(folder)}


def _is_too_wide(folder: Path) -> bool:
    """Return whether a folder is the user's home or contains it, as `/` does."""
    try:
        home = Path.home().resolve()
    except RuntimeError:  # a user without a home
        home = Path("/")
    return home.is_relative_to(folder)


def _check(environment: type[Environment], options: dict[str, Any]) -> None:
    async def check() -> None:
        async with asyncio.timeout(_CHECK_LIMIT), SharedResources() as shared:
            probe = environment(options, shared=shared)
            try:
                await probe.check()
            finally:
                await probe.close()

    run_to_the_end(check())


def _model(config: RolloutConfig, name: str) -> ModelSettings:
    named = name in MODELS.names()  # such a model may need no endpoint
    try:
        url, key = endpoint_from_environment(Path.cwd())
    except ConfigError:
        if not named:
            raise
        url = key = None
    if not named and not key:
        raise ConfigError(NO_KEY)
    return ModelSettings(
        name=name,
        base_url=url,
        api_key=key,
        max_retries=config.max_retries,
        most_requests=_share(config)[1],
        temperature=config.temperature,
        max_tokens=config.max_tokens,
        tool_format=config.tool_format,
        stream=config.stream,
    )


def _share(config: RolloutConfig) -> tuple[int, int]:
    """Return how many workers there are, and how many rollouts each plays at a time."""
    if config.isolate:
        return config.num_rollouts, 1
    workers = min(config.workers or usable_cores(), config.num_rollouts)
    if config.engine == "inline":
        workers = 1
    return workers, math.ceil(config.num_rollouts / workers)


def _identity(config: RolloutConfig, benchmark: Benchmark, options: dict[str, Any], *, needs_machine: bool) -> str:
    """Return a digest of everything that decides what is played; where and how fast it is played is no part of it."""
    known = {name: value for name, value in options.items() if not is_secret(name)}  # a new key makes no new run
    contents = {name: _content(Path(value)) if name in _FILES else value for name, value in known.items()}
    matters: list[Any] = [
        config.mode, config.env, contents, config.model, config.agent, config.metric, config.judge_model,
        config.max_turns, config.attempts, config.temperature, config.max_tokens, config.timeout, benchmark.digest,
    ]  # fmt: skip
    if config.tool_format != "native":
        matters.append(config.tool_format)
    if needs_machine:
        image = [config.provider_name or DEFAULT_PROVIDER, str(config.path_to_vm or ""), config.snapshot_name]
        matters.append([] if config.pool_address else image)
    return hashlib.sha256(json.dumps(matters, sort_keys=True).encode()).hexdigest()[:32]


def _content(path: Path) -> str:
    """Return a digest of a file, or of all files of a folder and their names: documents that changed make another run."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.relative_to(path).as_posix().encode())
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "model"


def _prices(config: RolloutConfig) -> dict[str, dict[str, float]] | None:
    """Return the prices of the `model` and, if that is another one, of the `judge`; None where the model's are unknown.

    Raises:
        ConfigError: the file of prices cannot be read.
    """
    if config.prices is None:
        return None
    entries, prices = read_settings(config.prices), {}
    for role, model in {"model": config.model, "judge": config.judge_model}.items():
        if model is None or (entry := entries.get(model)) is None:
            continue
        try:
            prices[role] = {name: float(entry[name]) for name in ("input", "output")}
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(f"{config.prices}: {model} needs numbers `input` and `output`: {error!r}") from error
    return prices if "model" in prices else None
