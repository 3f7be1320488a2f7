"""Preparation of a run: read files, check everything that the configuration names, and plan the run. Writes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id
from paragent._internal.registry import import_named, import_object
from paragent._internal.threads import run_to_the_end
from paragent.config import ASYNC_CONCURRENCY, RunConfig, usable_cores
from paragent.demo.samples import sample_options, sample_path
from paragent.engines import open_engine
from paragent.envs import ENVIRONMENTS, OPENENV, Environment, SharedResources, environment_class
from paragent.errors import ConfigError, MissingExtra, UnknownName
from paragent.mcp import McpSettings, check_servers, read_mcp_config
from paragent.rollout.budgets import check_prices
from paragent.rollout.config import RolloutConfig, is_secret
from paragent.rollout.dataset import Benchmark, read_benchmark
from paragent.rollout.machines import DEFAULT_PROVIDER, machine_settings, served_pool
from paragent.rollout.model_settings import judge_settings, model_settings
from paragent.rollout.program_settings import check_location, is_command, program_settings, runs_in_worker
from paragent.rollout.resources import RolloutSettings
from paragent.rollout.settings_file import read_prices
from paragent.rollout.tables import is_hub
from paragent.rollout.worker import check_agent
from paragent.scorers import SCORERS, scorer_class

if TYPE_CHECKING:
    from paragent.machines import MachineSettings

__all__ = [
    "RolloutPlan",
    "prepare",
    "prepare_without_tasks",
    "rollout_settings_of",
    "with_data_folder",
    "with_samples",
]

_FORWARDED = (("environment", "kb"), ("environment", "sandbox"), ("machines", "headless"))
"""Settings, with their sections, that are passed as options to environments that have an option of that name."""
_FORWARDED_TO_DESKTOPS = (
    ("environment", "action_space"),
    ("machines", "client_password"),
    ("environment", "observation_type"),
    ("environment", "pause"),
    ("environment", "record"),
    ("machines", "screen_height"),
    ("machines", "screen_width"),
)
"""Settings that are passed to desktop environments, which have options of all these names. They have defaults here, which must
not replace the defaults of another environment that has only some of the names."""
_LATER_SETTINGS: dict[str, Any] = {
    "api": "chat",
    "top_p": None,
    "seed": None,
    "reasoning_effort": None,
    "stop": [],
    "extra_body": {},
    "token_ids": False,
}
"""Settings of the model, with their defaults, that are part of a run's identity only if they are set: a run without them has
the identity that it had before they existed."""
_FILE_OPTIONS = ("kb", "site")
"""Options of environments that name files whose content influences results."""
_BALANCED_ENGINES = ("inline", "local")
"""Engines whose workers start at the same time, so that rollouts are spread evenly without a limit for each worker. The session
limits how many are under way, and `paragent ctl RUN set num-rollouts=N` can raise that."""
_SAMPLE = Path("sample")
"""The value of `--data` for the sample tasks of the environment."""
_CHECK_TIMEOUT = 120.0
"""Seconds for the check of an environment. Building the index of a large knowledge base takes longest."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """A run that is ready to start."""

    config: RolloutConfig
    benchmark: Benchmark
    settings: RolloutSettings
    """What workers need."""
    path: Path
    """The run directory."""
    identity: str
    """A digest of all settings that influence results."""
    prices: dict[str, dict[str, float]] | None
    machines: MachineSettings | None = None
    """The settings of machines; None if the environment needs none."""

    @property
    def engine(self) -> RunConfig:
        """The settings of the engine."""
        run = self.config.run
        workers, concurrency = _workers(self.config)
        if run.engine in _BALANCED_ENGINES and not run.isolate:
            concurrency = max(concurrency, ASYNC_CONCURRENCY)
        return RunConfig(
            engine_name=run.engine,
            worker_num=workers,
            concurrency=concurrency,
            job_name=self.path.name,
            in_local=run.engine_address is None,
            engine_options=run.engine_options,
        )

    @property
    def metric(self) -> str:
        """The name of the scorer whose score counts."""
        return self.settings.metric or environment_class(self.settings.environment).metric

    @property
    def lacks_answers(self) -> bool:
        """Whether no task has the expected answer that the scorer needs, so that nothing will be scored."""
        environment = environment_class(self.settings.environment)
        metric = self.metric
        if self.benchmark.answers or not (":" in metric or metric in SCORERS.names()):
            return False
        own = environment.score is not Environment.score and metric in {environment.metric, *environment.own_scores}
        return environment.needs_reference if own else scorer_class(metric).needs_reference

    @property
    def capacity(self) -> int:
        """How many rollouts the engine can execute at a time."""
        return self.engine.workers * self.engine.async_limit


def prepare(config: RolloutConfig) -> RolloutPlan:
    """Check a configuration and everything that it names: files, classes, the environment, the engine.

    Raises:
        UsageError: something is wrong; the message says what to change.
    """
    if not isinstance(config, RolloutConfig):
        raise ConfigError(
            f"the settings must be a RolloutConfig, not {config!r}; write RolloutConfig(mode=..., data=...)"
        )
    if config.environment.mode and not config.environment.env:
        environment_class(config.environment.mode)  # a wrong mode is reported before data that is missing
    config = with_samples(config)
    data = config.data
    if data.path is None:
        raise ConfigError(
            "--data is missing: the file with the tasks, or `--data sample` for the sample tasks of the mode"
        )
    if config.run.otel:
        _check_tracing()
    environment, options = _check_names(config)
    located = with_data_folder(options, environment, data.path)
    benchmark = read_benchmark(
        data.path,
        limit=data.limit,
        task_ids=data.task_id,
        lacking=environment(located).missing_requirements,
        skip=data.skip_unsupported,
        load_tasks=environment.load_tasks,
        fields=data.fields,
    )
    return _plan(config, environment, options, located, benchmark)


def prepare_without_tasks(config: RolloutConfig, endpoint: tuple[str, str]) -> RolloutPlan:
    """Check a configuration, as `prepare` does, for a session whose tasks arrive while it runs.

    Args:
        config: the settings of the run, without `data`.
        endpoint: the address and the key of the model's endpoint.

    Raises:
        UsageError: something is wrong; the message says what to change.
    """
    if config.data.path is not None:
        raise ConfigError("the tasks of this run arrive while it runs: remove `data`")
    if config.model.cache:
        raise ConfigError("training needs new samples: remove `cache`")
    if config.run.otel:
        _check_tracing()
    environment, options = _check_names(config)
    return _plan(config, environment, options, options, Benchmark.empty(), endpoint)


def _plan(
    config: RolloutConfig,
    environment: type[Environment],
    options: dict[str, Any],
    located: dict[str, Any],
    benchmark: Benchmark,
    endpoint: tuple[str, str] | None = None,
) -> RolloutPlan:
    """Return the plan of a run after further checks; `located` are the options with the data folder."""
    machines = _machine_settings(config, environment) if environment(options).needs_machine else None
    if machines is None and (config.machines.use_vm_pool or config.machines.pool_address):
        raise ConfigError(
            f"the environment {environment.name!r} needs no machine: remove --use-vm-pool and --pool-address"
        )
    identity = _identity(config, benchmark, options, needs_machine=machines is not None)
    path = config.run.output_dir / (config.run.run_name or _run_name(config, environment, identity))
    run = f"{path.resolve()}:{os.getpid()}"
    settings = _settings(config, located, run, live=str(path.resolve() / "live"), endpoint=endpoint)
    _check_environment(environment, options, settings.mcp)
    _check_program(settings, environment, needs_machine=machines is not None, pauses=config.machines.pause_machines)
    prices = read_prices(config)
    check_prices(config, prices)
    plan = RolloutPlan(config, benchmark, settings, path, identity, prices, machines)
    open_engine(plan.engine).close()  # the constructor starts nothing, and checks that the engine is available
    return plan


def rollout_settings_of(config: RolloutConfig) -> RolloutSettings:
    """Return the settings for a `RolloutWorker` that executes single tasks. Machines come from the pool at `pool_address`.

    Raises:
        UsageError: something is wrong; the message says what to change.
    """
    environment, options = _check_names(config)
    settings = _settings(config, options, new_id("alone"))
    pool = served_pool(config)
    if environment(options).needs_machine and pool is None:
        raise ConfigError(
            f"the environment {environment.name!r} needs a machine: set --pool-address to the pool of `paragent pool serve`"
        )
    _check_environment(environment, options, settings.mcp)
    _check_program(
        settings, environment, needs_machine=environment(options).needs_machine, pauses=config.machines.pause_machines
    )
    return replace(settings, machines=pool)


def _check_names(config: RolloutConfig) -> tuple[type[Environment], dict[str, Any]]:
    """Return the environment class and its options, after checking the environment, the agent and the scorer.

    Raises:
        UsageError: one of them does not exist or cannot be used.
    """
    _check_locations(config)
    environment = _environment_class(config)
    if config.agent.location and not is_command(config.agent.location):
        found = import_object(config.agent.location)
        check_agent(found, environment)
        if not runs_in_worker(config) and (isinstance(found, type) or hasattr(found, "run_episode")):
            raise ConfigError("--agent-in host and sandbox are for programs and functions; classes run in the worker")
    options = _environment_options(config, environment)
    metric = config.environment.metric
    own = {environment.metric, *environment.own_scores}
    if metric and metric not in own:
        if ":" not in metric and metric not in SCORERS.names():
            raise UnknownName("metric", metric, own.union(SCORERS.names()))
        scorer_class(metric)
    return environment, options


def _check_tracing() -> None:
    """Check that spans can be sent.

    Raises:
        MissingExtra: the packages of OpenTelemetry are not installed.
        ConfigError: a standard variable has a wrong value, or asks for another protocol.
    """
    try:
        from paragent.rollout.tracing import check_settings
    except ModuleNotFoundError as error:
        raise MissingExtra("--otel", "otel", str(error.name)) from error
    check_settings()


def _check_locations(config: RolloutConfig) -> None:
    """Check that classes given as MODULE:CLASS can be imported.

    Raises:
        ConfigError: one of them cannot.
    """
    given = {"env": config.environment.env, "agent": config.agent.location, "metric": config.environment.metric}
    for name, location in given.items():
        if (name == "agent" and is_command(location)) or (name == "env" and location and location.startswith(OPENENV)):
            continue
        if location and (":" in location or name == "agent"):  # the others may be registered names
            if name == "agent":
                check_location(location)
            import_named(location, f"--{name} ")


def _environment_class(config: RolloutConfig) -> type[Environment]:
    if config.environment.env:
        return environment_class(config.environment.env)
    if not config.environment.mode:
        raise ConfigError(f"--mode is missing; it is one of: {', '.join(ENVIRONMENTS.names())}")
    return environment_class(config.environment.mode)


def _environment_options(config: RolloutConfig, environment: type[Environment]) -> dict[str, Any]:
    """Return the options of the environment; paths are absolute, because workers have other working directories."""
    known = environment.option_names()
    options: dict[str, Any] = dict(config.environment.env_option)
    for section, name in _FORWARDED:
        value = getattr(getattr(config, section), name)
        if value is None or value is False:
            continue
        if name not in known:
            if name == "headless":
                continue
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is not an option of the environment {environment.name!r}; remove it")
        options[name] = str(value.resolve()) if isinstance(value, Path) else value
    if {name for _, name in _FORWARDED_TO_DESKTOPS} <= set(known):
        forwarded = {name: getattr(getattr(config, section), name) for section, name in _FORWARDED_TO_DESKTOPS}
        options = forwarded | options
    environment.read_options(options)
    return options


def with_samples(config: RolloutConfig) -> RolloutConfig:
    """Return a configuration in which `--data sample` is the file of sample tasks of the mode, with the options they need.

    A file called `sample` in the current folder has priority.

    Raises:
        ConfigError: the mode is missing.
        UnknownName: there are no sample tasks for the mode.
    """
    environment = config.environment
    if config.data.path != _SAMPLE or _SAMPLE.is_file():
        return config
    if not environment.mode or environment.env:
        raise ConfigError("`--data sample` has tasks for the environments of paragent: set --mode, without --env")
    path, options = sample_path(environment.mode), sample_options(environment.mode)
    needed = {name: str(value) for name, value in options.items()}
    return RolloutConfig(**config.flat() | {"data": path, "env_option": needed | environment.env_option})


def with_data_folder(options: dict[str, Any], environment: type[Environment], data: Path) -> dict[str, Any]:
    """Return the options with `data_folder`, the folder whose files tasks may read: by default the folder of the data.

    It is not part of a run's identity: a benchmark that was moved is the same benchmark. The home folder and its parents are
    used only if the user names them; otherwise tasks may read no files.
    """
    if "data_folder" not in environment.option_names():
        return options
    if named := options.get("data_folder"):
        return {**options, "data_folder": str(Path(named).resolve())}
    if is_hub(data):
        return options
    folder = data.parent.resolve()
    return options if _contains_home(folder) else {**options, "data_folder": str(folder)}


def _contains_home(folder: Path) -> bool:
    """Return whether a folder is the user's home folder or one of its parents."""
    try:
        home = Path.home().resolve()
    except RuntimeError:  # a user without a home folder
        home = Path("/")
    return home.is_relative_to(folder)


def _check_environment(environment: type[Environment], options: dict[str, Any], mcp: McpSettings | None) -> None:
    """Let the environment check whether it can work on this host, and start each MCP server once; raises what they raise."""

    async def check() -> None:
        async with asyncio.timeout(_CHECK_TIMEOUT), SharedResources() as shared:
            probe = environment(options, shared=shared)
            try:
                await probe.check()
            finally:
                await probe.close()
        if mcp is not None:
            await check_servers(mcp)

    run_to_the_end(check())


def _check_program(
    settings: RolloutSettings, environment: type[Environment], *, needs_machine: bool, pauses: bool
) -> None:
    """Check that the program that is the agent, if there is one, can run where `--agent-in` says.

    Raises:
        UsageError: it cannot.
    """
    program = settings.program
    if program is not None and program.place == "machine" and not needs_machine:
        raise ConfigError(
            f"--agent-in machine: the environment {environment.name!r} uses no machine here; use --agent-in sandbox"
        )
    if program is not None and program.place == "machine" and pauses:
        raise ConfigError("--pause-machines would pause the agent in the machine: remove it, or use --agent-in sandbox")
    if program is not None and program.place == "sandbox":
        from paragent.rollout.program import check_sandbox  # most runs have no program

        run_to_the_end(check_sandbox())


def _mcp_settings(config: RolloutConfig) -> McpSettings | None:
    agent = config.agent
    return read_mcp_config(agent.mcp_config, agent.mcp_timeout) if agent.mcp_config else None


def _settings(
    config: RolloutConfig,
    options: dict[str, Any],
    run: str,
    live: str | None = None,
    endpoint: tuple[str, str] | None = None,
) -> RolloutSettings:
    environment = config.environment
    model = model_settings(config, config.model.name, _workers(config)[1], endpoint)
    return RolloutSettings(
        run=run,
        environment=environment.env or environment.mode,
        options=options,
        model=model,
        judge=judge_settings(config, model),
        agent=config.agent.location,
        program=program_settings(config),
        agent_metadata=tuple(config.agent.metadata),
        metric=environment.metric,
        max_turns=config.agent.max_turns,
        mcp=_mcp_settings(config),
        timeout=config.run.timeout,
        isolated=config.run.isolate and config.run.engine != "inline",
        live=live,
    )


def _machine_settings(config: RolloutConfig, environment: type[Environment]) -> MachineSettings:
    """Return the settings of machines, after checking the provider.

    Raises:
        UsageError: the provider is unknown or not installed, or there is no such image.
    """
    from paragent.machines.providers import provider_class

    settings = machine_settings(config, environment)
    if not config.machines.pool_address:
        provider_class(config.machines.provider_name or DEFAULT_PROVIDER).check_image(settings)
    return settings


def _workers(config: RolloutConfig) -> tuple[int, int]:
    """Return the number of workers, and the number of concurrent rollouts in each."""
    run = config.run
    if run.isolate:
        return run.num_rollouts, 1
    workers = min(run.workers or usable_cores(), run.num_rollouts)
    if run.engine == "inline":
        workers = 1
    return workers, math.ceil(run.num_rollouts / workers)


def _identity(config: RolloutConfig, benchmark: Benchmark, options: dict[str, Any], *, needs_machine: bool) -> str:
    """Return a digest of everything that influences results; engine, workers and endpoint are not part of it."""
    public = {name: value for name, value in options.items() if not is_secret(name)}  # a new key is not a new run
    contents = {name: _digest(Path(value)) if name in _FILE_OPTIONS else value for name, value in public.items()}
    environment, model, agent, machines = config.environment, config.model, config.agent, config.machines
    parts: list[Any] = [
        environment.mode, environment.env, contents, model.name, agent.location, environment.metric,
        environment.judge_model, agent.max_turns, config.data.attempts, model.temperature, model.max_tokens,
        config.run.timeout, benchmark.digest,
    ]  # fmt: skip
    if model.tool_format != "native":
        parts.append(model.tool_format)
    if (mcp := _mcp_settings(config)) is not None:
        parts.append(mcp.document)
    if agent.metadata or not runs_in_worker(config):
        variables = {name: value for name, value in agent.environment.items() if not is_secret(name)}
        parts.append([agent.place or "", agent.network, variables, agent.metadata])
    if agent.hosted_tools:
        parts.append("hosted tools")
    later = {name: getattr(model, name) for name, unset in _LATER_SETTINGS.items() if getattr(model, name) != unset}
    if later:
        parts.append(later)
    if needs_machine:
        image = [machines.provider_name or DEFAULT_PROVIDER, str(machines.path_to_vm or ""), machines.snapshot_name]
        parts.append([] if machines.pool_address else image)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _digest(path: Path) -> str:
    """Return a digest of a file, or of all files of a folder and their names."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.relative_to(path).as_posix().encode())
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _run_name(config: RolloutConfig, environment: type[Environment], identity: str) -> str:
    model = re.sub(r"[^A-Za-z0-9.]+", "-", config.model.name).strip("-.") or "model"
    return f"{config.environment.mode or environment.name}-{model}-{identity[:10]}"
