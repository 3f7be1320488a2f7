"""The settings of a rollout run: one list for the command's flags, environment variables, files and the Python call."""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from paragent._internal.validation import number, seconds
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from paragent.transport.tls import TlsConf

__all__ = ["HIDDEN", "RolloutConfig", "flag_of", "is_secret"]

HIDDEN = "(hidden)"
_SECRET = re.compile(r"(^|[_-])(api)?(key|token|secret|password|passwd|credentials?)$")
_ADDRESSES = {"ray": "address", "spark": "master"}
"""What the engines that have clusters call the address of one."""
_WAY_OUT = ("192.0.2.1", 9)
"""An address for documentation: nobody is there, but the way to it leads out of this machine."""
_TOOL_FORMATS = ("native", "text")
_MODES = ("osworld", "math", "py", "rag", "web")


def _set(default: Any, group: str, about: str, **more: Any) -> Any:
    """Return a field with what the command line says about it."""
    settings = {"group": group, "help": about, **more}
    if isinstance(default, list | dict):
        return field(default_factory=type(default), metadata=settings)
    return field(default=default, metadata=settings)


@dataclass(slots=True, kw_only=True)
class RolloutConfig:
    """What to play, with what, where, and how many at a time.

    Raises:
        ConfigError: a setting is of the wrong type or out of range.
    """

    mode: str = _set("", "what to play", f"the environment: {', '.join(_MODES)}")
    data: Path | None = _set(
        None, "what to play", "the benchmark: a JSON or JSONL file, gzipped or not", metavar="FILE"
    )
    limit: int | None = _set(None, "what to play", "only the first so many tasks", least=1)
    task_id: list[str] = _set([], "what to play", "only this task; may be given several times", metavar="ID")
    attempts: int = _set(1, "what to play", "attempts at each task, for pass@k", least=1)
    num_rollouts: int = _set(5, "how", "rollouts at the same time (N)", least=1)
    engine: str = _set("local", "how", "where they run: local, ray, spark, inline")
    engine_address: str | None = _set(
        None,
        "how",
        "ray, spark: the cluster, as host:6379 or spark://host:7077 (default: one is started here)",
        metavar="ADDRESS",
    )
    host: str | None = _set(
        None,
        "how",
        "where workers reach this host: its pool, its machines (default: by the way to the cluster)",
        metavar="ADDRESS",
    )
    workers: int | None = _set(None, "how", "worker processes (default: one for each core, no more than N)", least=1)
    isolate: bool = _set(False, "how", "give every rollout a process of its own")
    timeout: float | None = _set(
        3600.0, "how", "seconds of work for one rollout; waiting for the endpoint or a machine is not work"
    )
    output_dir: Path = _set(Path("results"), "how", "where the directories of runs are", metavar="DIR")
    run_name: str | None = _set(None, "how", "the directory's name (default: made from what is played)", metavar="NAME")
    retry_failed: bool = _set(
        False, "how", "when a run is continued: play the rollouts that failed or timed out again, too"
    )
    give_up_after: int = _set(
        10, "how", "stop when this many rollouts, the first ones, all fail in the same way; 0: never", least=0
    )
    fresh: bool = _set(False, "how", "start anew; an earlier run is moved aside, never deleted")
    model: str = _set(
        "gpt-4.1-2025-04-14", "the agent", "a model of the endpoint, or `demo`, a hand-written policy that is no LLM"
    )
    max_turns: int = _set(100, "the agent", "turns of one rollout", least=1)
    max_retries: int = _set(3, "the agent", "further requests for one turn after errors", least=0)
    temperature: float | None = _set(None, "the agent", "as the endpoint understands it (default: the endpoint's)")
    max_tokens: int | None = _set(
        None, "the agent", "the longest answer of one turn (default: the endpoint's)", least=1
    )
    stream: bool = _set(False, "the agent", "have answers streamed")
    tool_format: str = _set(
        "native",
        "the agent",
        "native, or text: describe tools and read calls in the text, for models without tool support",
    )
    agent: str | None = _set(None, "the agent", "an agent of your own", metavar="MODULE:CLASS")
    prices: Path | None = _set(
        None,
        "the agent",
        "a JSON or YAML file {model: {input: ..., output: ...}}, for a million tokens",
        metavar="FILE",
    )
    env: str | None = _set(None, "environment and score", "an environment of your own", metavar="MODULE:CLASS")
    env_option: dict[str, str] = _set(
        {}, "environment and score", "an option of the environment; may be given several times", metavar="NAME=VALUE"
    )
    metric: str | None = _set(None, "environment and score", "what decides (default: the environment's own metric)")
    judge_model: str | None = _set(
        None, "environment and score", "the model of `--metric llm_judge` (default: --model)"
    )
    kb: Path | None = _set(None, "environment and score", "rag: the documents, a file or a folder", metavar="PATH")
    sandbox: str | None = _set(
        None, "environment and score", "py: bubblewrap (default), vm, or none, which is no sandbox"
    )
    num_vms: int = _set(3, "machines (osworld)", "machines in the pool (M)", least=1)
    use_vm_pool: bool = _set(
        False, "machines (osworld)", "let the rollouts share a pool of machines; without it each has one of its own"
    )
    num_spares: int | None = _set(
        None, "machines (osworld)", "machines kept ready beyond that, to hide resets (default: the provider's)", least=0
    )
    pool_address: str | None = _set(
        None, "machines (osworld)", "use the pool that `paragent pool serve` serves there", metavar="HOST:PORT"
    )
    tls_ca: Path | None = _set(
        None, "machines (osworld)", "PEM file: the authority that the pool's certificate must be from", metavar="FILE"
    )
    tls_cert: Path | None = _set(
        None, "machines (osworld)", "PEM file: the certificate to show to the pool", metavar="FILE"
    )
    tls_key: Path | None = _set(None, "machines (osworld)", "PEM file: its key", metavar="FILE")
    tls_server_name: str | None = _set(
        None, "machines (osworld)", "the name in the pool's certificate, where it is not the host's"
    )
    pause_machines: bool = _set(
        False, "machines (osworld)", "let a machine stand still while the model thinks (qemu only)"
    )
    path_to_vm: Path | None = _set(
        None, "machines (osworld)", "the machine's image: a file, or the name of a built one", metavar="FILE"
    )
    provider_name: str | None = _set(
        None, "machines (osworld)", "vmware, virtualbox, aws, docker, process, qemu (the default), ..."
    )
    vm_memory: int | None = _set(None, "machines (osworld)", "MiB of each machine", least=1)
    vm_cores: int | None = _set(None, "machines (osworld)", "processors of each machine", least=1)
    vm_option: dict[str, str] = _set(
        {}, "machines (osworld)", "an option of the provider; may be given several times", metavar="NAME=VALUE"
    )
    region: str | None = _set(None, "machines (osworld)", "of the cloud")
    action_space: str = _set("computer_13", "machines (osworld)", "computer_13 or pyautogui")
    observation_type: str = _set(
        "screenshot",
        "machines (osworld)",
        "screenshot, a11y_tree, screenshot_a11y_tree or som (marks on the screenshot)",
    )
    pause: float = _set(
        2.0,
        "machines (osworld)",
        "seconds that a screen may take to be quiet after an action before it is shown anyway",
    )
    record: bool = _set(False, "machines (osworld)", "keep a video of each rollout")
    skip_unsupported: bool = _set(
        False, "what to play", "leave out tasks that the environment cannot set up or score, instead of stopping"
    )
    screen_width: int = _set(1920, "machines (osworld)", "in pixels", least=1)
    screen_height: int = _set(1080, "machines (osworld)", "in pixels", least=1)
    headless: bool = _set(False, "machines (osworld)", "without a window")
    snapshot_name: str | None = _set(None, "machines (osworld)", "the state that machines are reset to")
    client_password: str = _set("password", "machines (osworld)", "of the machine's user", metavar="TEXT")

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for spec in dataclasses.fields(self):
            value = _converted(spec.name, getattr(self, spec.name), hints[spec.name])
            least = spec.metadata.get("least")
            if least is not None and value is not None and value < least:
                raise ConfigError(f"{flag_of(spec.name)} must be at least {least}, not {value}")
            setattr(self, spec.name, value)
        if self.timeout is not None:
            seconds(self.timeout, "--timeout")
        seconds(self.pause, "--pause", zero=True)
        if self.temperature is not None:
            number(self.temperature, "--temperature")
        if self.tool_format not in _TOOL_FORMATS:
            raise ConfigError(f"--tool-format must be {' or '.join(_TOOL_FORMATS)}, not {self.tool_format!r}")
        if self.engine_address is not None and self.engine not in _ADDRESSES:
            raise ConfigError(f"--engine-address is for {' and '.join(_ADDRESSES)}, not for --engine {self.engine}")
        if self.pool_tls is not None and self.pool_address is None:
            raise ConfigError(
                "TLS is for a pool that others serve: say where it is, --pool-address, or leave --tls-... out"
            )
        if self.run_name is not None and (not self.run_name or "/" in self.run_name or self.run_name.startswith(".")):
            raise ConfigError(f"--run-name must be a plain name, not {self.run_name!r}")

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> RolloutConfig:
        """Return the configuration that the keys of a file or the fields of a call describe.

        Raises:
            ConfigError: a key is unknown; the message has the one that was probably meant.
        """
        known = [spec.name for spec in dataclasses.fields(cls)]
        given = {name.replace("-", "_"): value for name, value in settings.items()}
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                raise ConfigError(f"there is no setting {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return cls(**given)

    @property
    def own_address(self) -> str:
        """Where workers reach this host: as it was given, or as the cluster sees it; without one there is only this host."""
        if self.host is not None or self.engine_address is None:
            return self.host or "127.0.0.1"
        from paragent.engines._cluster import local_address_towards

        host, _, port = self.engine_address.rpartition("://")[2].partition(":")
        known = (host, int(port)) if port.isdigit() else _WAY_OUT
        return local_address_towards(known)

    @property
    def pool_tls(self) -> TlsConf | None:
        """How to connect to the pool at `pool_address`; None if nothing is said about TLS, and only then is there none.

        Paths are absolute, for workers may stand elsewhere.
        """
        from paragent.transport.tls import TlsConf

        files = {name: getattr(self, f"tls_{name}") for name in ("ca", "cert", "key")}
        given = {name: str(path.absolute()) for name, path in files.items() if path is not None}
        if self.tls_server_name:
            given["server_name"] = self.tls_server_name
        return TlsConf(**given) if given else None

    @property
    def engine_options(self) -> dict[str, Any]:
        """What the engine is told about the cluster."""
        return {} if self.engine_address is None else {_ADDRESSES[self.engine]: self.engine_address}

    def shown(self) -> dict[str, Any]:
        """Return the settings as plain values, as a run's directory keeps them: without secrets, and ready to go on with."""
        settings = {spec.name: _shown(spec.name, getattr(self, spec.name)) for spec in dataclasses.fields(self)}
        return settings | {"fresh": False, "retry_failed": False}


def is_secret(name: str) -> bool:
    """Return whether a setting or an option of this name is to be kept out of files: a key, a token, a password."""
    return _SECRET.search(name.lower()) is not None


def _shown(name: str, value: Any) -> Any:
    if is_secret(name) and isinstance(value, str):
        return HIDDEN
    if isinstance(value, dict):
        return {key: _shown(key, one) for key, one in value.items()}
    return str(value) if isinstance(value, Path) else value


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _converted(name: str, value: Any, hint: Any) -> Any:
    """Return `value` as the type that a setting has; texts, as environment variables and shells give them, are read."""
    if value is None and "None" in str(hint):
        return None
    kind = next((one for one in (bool, int, float, Path, list, dict, str) if _is(hint, one)), str)
    try:
        if kind is bool:
            return (
                value
                if isinstance(value, bool)
                else {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
            )
        if kind is list:
            return [str(one) for one in ([value] if isinstance(value, str) else value)]
        if kind is dict:
            return (
                dict(value)
                if isinstance(value, dict)
                else dict(_pair(one) for one in ([value] if isinstance(value, str) else value))
            )
        if isinstance(value, bool) or value is None:
            raise ValueError(value)
        return kind(value)
    except (ValueError, KeyError, TypeError) as error:
        wrong = error.args[0] if kind is dict and isinstance(error, ValueError) else value
        raise ConfigError(f"{flag_of(name)} must be {_KINDS[kind]}, not {wrong!r}") from None


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Path: "a path",
    list: "a list",
    dict: "of the form NAME=VALUE",
    str: "a text",
}


def _is(hint: Any, kind: type) -> bool:
    return hint is kind or str(hint).replace("pathlib.", "").split("[")[0].split(" ")[0] == kind.__name__


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = str(text).partition("=")
    if not separator:
        raise ValueError(text)
    return name, value
