"""`RolloutConfig`: the settings of a rollout run, in six sections.

Each setting has one flat name. The command line flag (`--num-rollouts`), the environment variable (`PARAGENT_NUM_ROLLOUTS`),
the key of a `--config` file (`num_rollouts`) and the keyword argument of `RolloutConfig` are made from it. In Python the
settings are grouped: `config.run.num_rollouts`. Constructing a configuration reads no files and uses no network;
`paragent.rollout.prepare` does that.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from paragent._internal.validation import check_fields, integer, one_of, optional, reject_unknown, seconds
from paragent.errors import ConfigError
from paragent.rollout.setting_values import (
    CONVERTERS,
    DURATION,
    KIND_NAMES,
    above_zero,
    between,
    in_seconds,
    not_empty,
    to_json_object,
)

if TYPE_CHECKING:
    from typing import Unpack

    from paragent.rollout.keywords import RolloutKeywords

__all__ = [
    "HIDDEN",
    "AgentSection",
    "DataSection",
    "EnvironmentSection",
    "MachinesSection",
    "ModelSection",
    "RolloutConfig",
    "RunSection",
    "Setting",
    "all_settings",
    "is_secret",
]

HIDDEN = "(hidden)"
_PLACES = ("worker", "sandbox", "host", "machine")
_NETWORKS = ("none", "host")
_APIS = ("chat", "responses", "anthropic")
_TOOL_FORMATS = ("native", "text")
_AT_LIMIT = ("finish", "cancel")
_LACKING = {"responses": ("seed", "stop"), "anthropic": ("seed",)}
"""Settings of requests that a protocol does not have."""
_MANAGED_FIELDS = frozenset({"model", "messages", "input", "tools", "stream", "stream_options"})
"""Fields of a request that `--extra-body` must not replace."""
_SECRET = re.compile(r"(^|[._-])(api)?(key|token|secret|password|passwd|credentials?)$")
_ENGINE_ADDRESS_OPTIONS = {"ray": "address", "spark": "master"}
"""The option of each cluster engine that takes the address of a running cluster."""


def _setting(default: Any, about: str, **metadata: Any) -> Any:
    """Return a dataclass field with its help text.

    Args:
        default: the default value.
        about: the help text of the flag.
        metadata: `name`, the flat name where it differs from the field's; `metavar` of the flag; `least`, the smallest
            value of an integer; `values`, texts that shells suggest; `duration`, a number of seconds ("above 0" or "0
            allowed"), or a text as `1h30m`; `json`, a dictionary that is given as a JSON object instead of `NAME=VALUE`.
    """
    metadata = {"help": about, **metadata}
    if isinstance(default, list | dict):
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """Base class of the sections: converts and checks every field."""

    title: ClassVar[str]
    """The name of the section in `RolloutConfig`."""

    def __post_init__(self) -> None:
        for setting in _settings_of(self.title):
            object.__setattr__(self, setting.field, setting.convert(getattr(self, setting.field)))
        self.check()

    def check(self) -> None:
        """Check what concerns more than the type of one field.

        Raises:
            ConfigError: a value is not allowed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSection(_Section):
    """Which tasks to run."""

    title = "data"

    path: Path | None = _setting(
        None,
        "the benchmark: a JSON, JSONL, Parquet, Arrow or CSV file, a dataset of the Hugging Face hub: hf:NAME/CONFIG:SPLIT, or "
        "sample: the sample tasks of the mode",
        name="data",
        metavar="FILE",
    )
    fields: dict[str, str] = _setting(
        {},
        "field of the data with the question, answer or id, as question=problem; may be repeated",
        name="data_field",
        metavar="NAME=FIELD",
    )
    limit: int | None = _setting(None, "run only the first N tasks", least=1)
    task_id: list[str] = _setting([], "run only this task; may be repeated", metavar="ID")
    attempts: int = _setting(1, "attempts at each task, for pass@k", least=1)
    skip_unsupported: bool = _setting(
        False, "skip tasks that the environment cannot set up or score, instead of stopping"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection(_Section):
    """Which agent acts, and for how long."""

    title = "agent"

    location: str | None = _setting(
        None,
        "your own agent: MODULE:CLASS, MODULE:FUNCTION, or a program: 'cmd: PROGRAM ...' (default: the built-in chat agent)",
        name="agent",
        metavar="AGENT",
    )
    place: str | None = _setting(
        None,
        "where the agent runs: worker (default for classes and functions), sandbox (default for programs), host, or machine",
        name="agent_in",
        metavar="PLACE",
        values=_PLACES,
    )
    environment: dict[str, str] = _setting(
        {}, "variable for a program that is the agent; may be repeated", name="agent_env", metavar="NAME=VALUE"
    )
    network: str = _setting(
        "none",
        "network of an agent in the sandbox: none (it reaches only the model gateway), or host (the network of this host)",
        name="agent_network",
        values=_NETWORKS,
    )
    hosted_tools: bool = _setting(
        False,
        "let an agent use what the provider executes or stores: web search, code interpreter, remote MCP servers, `store`",
        name="agent_hosted_tools",
    )
    metadata: list[str] = _setting(
        [],
        "field of the task that a program or function gets besides the question, never one with the solution; may be repeated",
        name="agent_metadata",
        metavar="NAME",
    )
    max_turns: int = _setting(100, "maximum number of turns in one rollout", least=1)
    mcp_config: Path | None = _setting(
        None,
        'JSON file {"mcpServers": {NAME: {command, args, env} or {url, headers}}}: MCP servers whose tools the agent can call',
        metavar="FILE",
    )
    mcp_timeout: float = _setting(120.0, "seconds for one call of an MCP tool", duration="above 0")

    def check(self) -> None:
        check_fields(self, {"place": optional(one_of(*_PLACES)), "network": one_of(*_NETWORKS)}, _agent_flag)
        for name in self.environment:
            _check_variable(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection(_Section):
    """Which model the agent uses, and how."""

    title = "model"

    name: str = _setting(
        "gpt-4.1-2025-04-14",
        "model name at the endpoint, or `demo`: a scripted policy that needs no endpoint and is not an LLM",
        name="model",
    )
    max_retries: int = _setting(3, "retries of one request after errors", least=0)
    request_timeout: float | None = _setting(
        None, "seconds for one request, until its reply is complete; below --timeout (default: 600)", duration="above 0"
    )
    stall_timeout: float = _setting(
        120.0, "seconds without progress after which a streamed reply counts as broken", duration="above 0"
    )
    api: str = _setting(
        "chat",
        "protocol of the endpoint: chat (chat completions), responses, or anthropic (the Messages API)",
        values=_APIS,
    )
    temperature: float | None = _setting(None, "sampling temperature (default: the agent's or the endpoint's)")
    top_p: float | None = _setting(None, "sample from the most probable tokens with this total probability")
    seed: int | None = _setting(None, "seed of the sampling, for endpoints that support it")
    max_tokens: int | None = _setting(
        None, "maximum number of tokens in one reply (default: the endpoint's)", name="max_reply_tokens", least=1
    )
    reasoning_effort: str | None = _setting(None, "how much the model reasons, such as low, medium or high")
    stop: list[str] = _setting([], "text at which a reply ends; may be repeated", metavar="TEXT")
    extra_body: dict[str, Any] = _setting(
        {}, "further fields of each request as a JSON object, in the endpoint's protocol", metavar="JSON", json=True
    )
    token_ids: bool = _setting(
        False, "record the ids and log probabilities of sampled tokens (vLLM and SGLang), for training"
    )
    stream: bool = _setting(False, "request streamed replies")
    cache: bool = _setting(False, "answer requests that were made before, in any run, from a local cache of replies")
    cache_dir: Path | None = _setting(
        None, "folder of the cache (default: paragent/replies in the user's cache folder)", metavar="DIR"
    )
    tool_format: str = _setting(
        "native",
        "native; or text: describe the tools in the prompt and parse calls from the reply, for models without tool support",
        values=_TOOL_FORMATS,
    )
    prices: Path | None = _setting(
        None, "JSON or YAML file {model: {input: ..., output: ...}}: price per million tokens", metavar="FILE"
    )

    def check(self) -> None:
        checks = {
            "temperature": optional(between(0, 2)),
            "top_p": optional(between(0, 1)),
            "reasoning_effort": optional(not_empty),
            "tool_format": one_of(*_TOOL_FORMATS),
            "api": one_of(*_APIS),
        }
        check_fields(self, checks, _flag)
        for text in self.stop:
            not_empty(text, "--stop")
        if managed := sorted(_MANAGED_FIELDS.intersection(self.extra_body)):
            raise ConfigError(
                f"--extra-body must not have {', '.join(managed)}: paragent sets these fields. For the model use --model, for "
                "streaming --stream"
            )
        if self.cache_dir is not None and not self.cache:
            raise ConfigError("--cache-dir is for runs with --cache: add --cache, or remove it")
        for name in _LACKING.get(self.api, ()):
            if getattr(self, name) not in (None, []):
                raise ConfigError(f"--{name} is not supported by --api {self.api}: leave it out, or use --api chat")
        if self.token_ids and self.api != "chat":
            raise ConfigError(f"--token-ids needs --api chat: endpoints return no token ids with --api {self.api}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSection(_Section):
    """Which environment the agent acts in, and how answers are scored."""

    title = "environment"

    mode: str = _setting("", "name of the environment, such as math, py, rag or web")
    env: str | None = _setting(
        None,
        "your own environment class, or that of an OpenEnv server (openenv:URL), instead of --mode",
        metavar="MODULE:CLASS",
    )
    env_option: dict[str, str] = _setting({}, "option of the environment; may be repeated", metavar="NAME=VALUE")
    metric: str | None = _setting(None, "the scorer (default: the environment's own)")
    judge_model: str | None = _setting(None, "model for `--metric llm_judge` (default: the value of --model)")
    kb: Path | None = _setting(None, "rag: the documents, a file or a folder", metavar="PATH")
    sandbox: str | None = _setting(
        None, "py: bubblewrap (the default), vm, or none (no sandbox)", values=("bubblewrap", "vm", "none")
    )
    action_space: str = _setting(
        "computer_13", "desktops: computer_13 or pyautogui", values=("computer_13", "pyautogui")
    )
    observation_type: str = _setting(
        "screenshot",
        "desktops: screenshot, a11y_tree, screenshot_a11y_tree or som (screenshot with marks)",
        values=("screenshot", "a11y_tree", "screenshot_a11y_tree", "som"),
    )
    pause: float = _setting(
        2.0, "desktops: maximum number of seconds to wait for a stable screen after an action", duration="0 allowed"
    )
    record: bool = _setting(False, "desktops: record a video of each rollout")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesSection(_Section):
    """The machines for environments that need one."""

    title = "machines"

    num_vms: int = _setting(3, "number of machines in the pool (M)", least=1)
    use_vm_pool: bool = _setting(
        False, "share a pool of machines between rollouts (default: one machine for each concurrent rollout)"
    )
    num_spares: int | None = _setting(
        None,
        "additional machines kept ready, so that rollouts do not wait for resets (default: the provider's)",
        least=0,
    )
    pool_address: str | None = _setting(
        None, "use the pool that `paragent pool serve` serves at this address", metavar="HOST:PORT"
    )
    tls_ca: Path | None = _setting(None, "PEM file: the CA that signed the pool's certificate", metavar="FILE")
    tls_cert: Path | None = _setting(None, "PEM file: client certificate for the pool", metavar="FILE")
    tls_key: Path | None = _setting(None, "PEM file: private key of --tls-cert", metavar="FILE")
    tls_server_name: str | None = _setting(None, "name in the pool's certificate, if it differs from the host")
    pause_machines: bool = _setting(False, "pause a machine while the model generates (qemu only)")
    path_to_vm: Path | None = _setting(None, "machine image: a file, or the name of a built image", metavar="FILE")
    provider_name: str | None = _setting(
        None, "where machines come from: vmware, virtualbox, aws, docker, process, qemu (the default), or a plug-in"
    )
    vm_memory: int | None = _setting(None, "memory of each machine in MiB", least=1)
    vm_cores: int | None = _setting(None, "CPU cores of each machine", least=1)
    vm_option: dict[str, str] = _setting({}, "option of the provider; may be repeated", metavar="NAME=VALUE")
    region: str | None = _setting(None, "region of the cloud provider")
    screen_width: int = _setting(1920, "screen width in pixels", least=1)
    screen_height: int = _setting(1080, "screen height in pixels", least=1)
    headless: bool = _setting(False, "run machines without a window")
    snapshot_name: str | None = _setting(None, "snapshot that machines are reset to")
    client_password: str = _setting("password", "password of the user inside the machine", metavar="TEXT")

    @property
    def uses_tls(self) -> bool:
        """Whether any TLS setting is given."""
        return any((self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name))

    def check(self) -> None:
        if self.uses_tls and self.pool_address is None:
            raise ConfigError("--tls-... settings are for a served pool: add --pool-address, or remove them")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection(_Section):
    """How many rollouts run, where, and where results are stored."""

    title = "run"

    num_rollouts: int = _setting(5, "number of concurrent rollouts (N)", least=1)
    engine: str = _setting("local", "where rollouts execute: local, ray, spark or inline")
    engine_address: str | None = _setting(
        None,
        "ray, spark: address of a running cluster, host:6379 or spark://host:7077 (default: start one here)",
        metavar="ADDRESS",
    )
    engine_option: dict[str, Any] = _setting(
        {},
        "option of the engine, such as num_cpus=0.5 (ray) or partitions=4 (spark); may be repeated",
        metavar="NAME=VALUE",
    )
    host: str | None = _setting(
        None,
        "address of this host for workers, which connect to its pool and machines (default: from the route to the cluster)",
        metavar="ADDRESS",
    )
    workers: int | None = _setting(None, "number of worker processes (default: one per core, at most N)", least=1)
    isolate: bool = _setting(False, "run each rollout in its own process")
    timeout: float | None = _setting(
        3600.0,
        "seconds of work of one agent; opening the environment and waiting for the endpoint or a machine do not count",
        duration="above 0",
    )
    output_dir: Path = _setting(Path("results"), "folder of run directories", metavar="DIR")
    run_name: str | None = _setting(None, "name of the run directory (default: made from the settings)", metavar="NAME")
    retry_failed: bool = _setting(
        False, "when continuing a run, also run failed, timed-out and cancelled rollouts again"
    )
    give_up_after: int = _setting(10, "stop when the first N rollouts all fail with the same error; 0: never", least=0)
    max_cost: float | None = _setting(
        None, "stop when the run has cost this much, by the prices of --prices; all sessions count", metavar="AMOUNT"
    )
    max_tokens: int | None = _setting(
        None, "stop when the run has used this many tokens, input and output together; all sessions count", least=1
    )
    max_time: float | None = _setting(
        None, "stop when the sessions of the run have taken this long: seconds, or 90m, 2h, 1h30m", duration="above 0"
    )
    at_limit: str = _setting(
        "finish",
        "what happens to running rollouts when a --max-... budget is used up: finish, or cancel (they stay pending)",
        values=_AT_LIMIT,
    )
    fresh: bool = _setting(False, "start a new run; an existing run directory is renamed, not deleted")
    otel: bool = _setting(
        False, "send spans of the rollouts to the OpenTelemetry endpoint of OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    otel_content: bool = _setting(
        False, "with --otel: also send messages, arguments and results of tools, and error messages"
    )

    @property
    def engine_options(self) -> dict[str, Any]:
        """The options of the engine, with the address of the cluster."""
        named = {} if self.engine_address is None else {_ENGINE_ADDRESS_OPTIONS[self.engine]: self.engine_address}
        return self.parsed_engine_option | named

    @property
    def parsed_engine_option(self) -> dict[str, Any]:
        """`engine_option`, where texts that are JSON are parsed."""
        from paragent.machines.providers.base import parse_option

        return {name: parse_option(value) for name, value in self.engine_option.items()}

    def check(self) -> None:
        if self.engine_address is not None and self.engine not in _ENGINE_ADDRESS_OPTIONS:
            engines = " and ".join(_ENGINE_ADDRESS_OPTIONS)
            raise ConfigError(f"--engine-address is for {engines}, not for --engine {self.engine}")
        if _ENGINE_ADDRESS_OPTIONS.get(self.engine) in self.engine_option:
            raise ConfigError("--engine-option: set the address of the cluster with --engine-address")
        if self.otel_content and not self.otel:
            raise ConfigError("--otel-content is for runs with --otel: add --otel, or remove it")
        if self.run_name is not None and (not self.run_name or "/" in self.run_name or self.run_name.startswith(".")):
            raise ConfigError(f"--run-name must be a name without '/' and leading '.', not {self.run_name!r}")
        check_fields(self, {"max_cost": optional(above_zero), "at_limit": one_of(*_AT_LIMIT)}, _flag)


_SECTIONS: dict[str, type[_Section]] = {
    section.title: section
    for section in (DataSection, AgentSection, ModelSection, EnvironmentSection, MachinesSection, RunSection)
}


@dataclass(init=False, frozen=True, slots=True)
class RolloutConfig:
    """All settings of a rollout run.

    Settings are given by their flat names, as sections, or both; a flat name has priority over the section::

        RolloutConfig(mode="math", data="tasks.jsonl", model="demo", num_rollouts=10)
        RolloutConfig(environment=EnvironmentSection(mode="math"), model=ModelSection(name="demo"), data="tasks.jsonl")

    `data`, `agent` and `model` name both a section and a setting: a section or a mapping sets the section, any other value
    the setting. Values may be strings, as in environment variables.

    Raises:
        ConfigError: a name is unknown (the message has the closest match), or a value has the wrong type or range.
    """

    data: DataSection
    """Which tasks to run."""
    agent: AgentSection
    """The agent."""
    model: ModelSection
    """The model and its endpoint."""
    environment: EnvironmentSection
    """The environment and the score."""
    machines: MachinesSection
    """The machines that rollouts lease."""
    run: RunSection
    """How the run is executed and where it is stored."""

    def __init__(self, **settings: Unpack[RolloutKeywords]) -> None:
        values: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
        flat: dict[str, Any] = {}
        for name, value in settings.items():
            if name in _SECTIONS and isinstance(value, _Section | Mapping):
                values[name] = _section_values(name, value)
            else:
                flat[name.replace("-", "_")] = value
        known = {setting.name: setting for setting in all_settings()}
        reject_unknown("RolloutConfig", "setting", flat, known, "`paragent rollout --help` describes all settings")
        for name, value in flat.items():
            values[known[name].section][known[name].field] = value
        for section, kind in _SECTIONS.items():
            object.__setattr__(self, section, kind(**values[section]))
        self._check_limits()

    def _check_limits(self) -> None:
        request, rollout = self.model.request_timeout, self.run.timeout
        if request is not None and rollout is not None and request >= rollout:
            raise ConfigError(
                f"--request-timeout must be below --timeout, which is {rollout:g} s, not {request:g} s: a request that gets no "
                "answer would use up the time of its rollout"
            )

    def flat(self) -> dict[str, Any]:
        """Return every setting by its flat name."""
        return {setting.name: getattr(getattr(self, setting.section), setting.field) for setting in all_settings()}

    def stored(self) -> dict[str, Any]:
        """Return the flat settings as JSON values for `config.json`, without secrets.

        `fresh` and `retry_failed` are off, so that `--config` with the stored file continues the run.
        """
        flat = self.flat() | {"engine_option": self.run.parsed_engine_option}
        settings = {name: _stored_value(name, value) for name, value in flat.items()}
        return settings | {"fresh": False, "retry_failed": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The description of one setting, for the command line and for checks."""

    name: str
    """Its flat name."""
    section: str
    field: str
    """Its name in the section."""
    kind: type
    """bool, int, float, str, Path, list or dict."""
    optional: bool
    """Whether None is allowed."""
    default: Any
    help: str
    metavar: str | None
    least: int | None
    duration: str | None
    json: bool
    """Whether it is given as a JSON object."""
    values: tuple[str, ...]
    """Values that shells suggest; there may be others."""

    @property
    def flag(self) -> str:
        """The command line flag."""
        return _flag(self.name)

    def convert(self, value: Any) -> Any:
        """Return `value` in the type of the setting; strings are parsed.

        Raises:
            ConfigError: the value has another type or is out of range.
        """
        if value is None and self.optional:
            return None
        if self.json:
            return to_json_object(value, self.flag)
        try:
            converted = CONVERTERS[self.kind](in_seconds(value) if self.duration else value)
        except (ValueError, KeyError, TypeError):
            expected = DURATION if self.duration else KIND_NAMES[self.kind]
            wrong = (
                [one for one in value if "=" not in str(one)] if self.kind is dict and isinstance(value, list) else []
            )
            raise ConfigError(f"{self.flag} must be {expected}, not {wrong[0] if wrong else value!r}") from None
        if self.least is not None:
            integer(converted, self.flag, least=self.least, none=self.optional)
        if self.duration is not None:
            seconds(converted, self.flag, zero=self.duration == "0 allowed", none=self.optional)
        return converted


def _agent_flag(name: str) -> str:
    return {"place": "--agent-in", "network": "--agent-network"}[name]


def _check_variable(name: str) -> None:
    """Check the name of a variable for the program that is the agent.

    Raises:
        ConfigError: it is malformed, or the run sets this variable itself.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(f"--agent-env: {name!r} is not the name of a variable")
    if re.fullmatch(r"(OPENAI|ANTHROPIC)_(BASE_URL|API_KEY)|PARAGENT_.*", name):
        raise ConfigError(f"--agent-env: the run sets {name} itself, so that the agent uses the model of the run")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@functools.cache
def all_settings() -> tuple[Setting, ...]:
    """Return the descriptions of all settings, in the order of the help text."""
    return tuple(setting for title in _SECTIONS for setting in _settings_of(title))


@functools.cache
def _settings_of(title: str) -> tuple[Setting, ...]:
    section = _SECTIONS[title]
    hints = get_type_hints(section)
    settings = []
    for spec in dataclasses.fields(section):
        kind, optional = _kind_of(hints[spec.name])
        setting = Setting(
            name=spec.metadata.get("name", spec.name),
            section=title,
            field=spec.name,
            kind=kind,
            optional=optional,
            default=spec.default if spec.default is not dataclasses.MISSING else None,
            help=spec.metadata["help"],
            metavar=spec.metadata.get("metavar"),
            least=spec.metadata.get("least"),
            duration=spec.metadata.get("duration"),
            json=spec.metadata.get("json", False),
            values=spec.metadata.get("values", ()),
        )
        settings.append(setting)
    return tuple(settings)


def _kind_of(hint: Any) -> tuple[type, bool]:
    """Return the plain type of an annotation, and whether None is allowed."""
    if get_origin(hint) in {Union, types.UnionType}:
        [kind] = [one for one in get_args(hint) if one is not type(None)]
        return get_origin(kind) or kind, True
    return get_origin(hint) or hint, False


def _section_values(name: str, given: _Section | Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a section by the names of its fields.

    Raises:
        ConfigError: it is another section, or a name is unknown.
    """
    fields = [setting.field for setting in _settings_of(name)]
    if isinstance(given, _Section):
        if not isinstance(given, _SECTIONS[name]):
            raise ConfigError(f"{name} must be a {_SECTIONS[name].__name__}, not a {type(given).__name__}")
        return {one: getattr(given, one) for one in fields}
    reject_unknown(f"the section {name!r}", "setting", given, fields)
    return dict(given)


def is_secret(name: str) -> bool:
    """Return whether the value of a setting or option with this name must not be stored: a key, token or password."""
    return _SECRET.search(name.lower()) is not None


def _stored_value(name: str, value: Any) -> Any:
    if is_secret(name) and isinstance(value, str):
        return HIDDEN
    if isinstance(value, dict):
        return {key: _stored_value(key, one) for key, one in value.items()}
    return str(value) if isinstance(value, Path) else value
