"""The engines by name, and how one is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.registry import Implementation, Registry, import_object
from paragent.engines.base import RuntimeEngine
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from paragent.config import RunConfig

__all__ = ["ENGINES", "open_engine"]

ENGINES = Registry(
    kind="engine",
    implementations={
        "inline": Implementation("paragent.engines.inline:InlineRuntime"),
        "local": Implementation("paragent.engines.local:LocalRuntime"),
        "ray": Implementation("paragent.engines.ray:RayRuntime", extra="ray"),
        "spark": Implementation("paragent.engines.spark:SparkRuntime", extra="spark"),
    },
    entry_points="paragent.engines",
)


def open_engine(config: RunConfig) -> RuntimeEngine:
    """Return a new engine of the kind that `config` names; the caller owns it and closes it.

    Raises:
        UnknownName: no engine has this name.
        MissingExtra: the engine's optional packages are not installed.
        ConfigError: `config.cls` is no engine.
    """
    chosen: Any = config.cls if config.cls is not None else ENGINES.load(config.engine_name)
    if isinstance(chosen, str):
        chosen = import_object(chosen)
    if not (isinstance(chosen, type) and issubclass(chosen, RuntimeEngine)):
        raise ConfigError(f"cls must be a subclass of RuntimeEngine or the path to one, not {chosen!r}")
    return chosen(config)
