"""Environments: one base class, one module or package per environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.registry import Implementation, Registry, import_named
from paragent.envs.base import AgentFactory, Environment, LoadedTask
from paragent.envs.resources import SharedResources
from paragent.envs.tools import SchemaArguments, Tool, ToolFailed, ToolResult, ToolSource, call_tool, tool
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ENVIRONMENTS",
    "OPENENV",
    "AgentFactory",
    "Environment",
    "LoadedTask",
    "SchemaArguments",
    "SharedResources",
    "Tool",
    "ToolFailed",
    "ToolResult",
    "ToolSource",
    "call_tool",
    "environment_class",
    "open_environment",
    "tool",
]

OPENENV = "openenv:"
"""The beginning of the name of an environment that a server of OpenEnv offers; its address follows."""
ENVIRONMENTS = Registry(
    kind="environment",
    implementations={
        "math": Implementation("paragent.envs.math:MathEnvironment", extra="math"),
        "openenv": Implementation("paragent.envs.openenv:OpenEnvEnvironment", extra="rollout"),
        "osworld": Implementation("paragent.osworld.env:OSWorldEnvironment"),
        "py": Implementation("paragent.envs.py.environment:PyEnvironment"),
        "rag": Implementation("paragent.envs.rag.environment:RagEnvironment", extra="rag"),
        "web": Implementation("paragent.envs.web.environment:WebEnvironment", extra="web"),
    },
    entry_points="paragent.envs",
)


def environment_class(name: str | type[Environment]) -> type[Environment]:
    """Return the class of an environment.

    Args:
        name: a registered name, `module:Class`, `openenv:URL`, or the class itself.

    Raises:
        UnknownName: no environment has this name.
        MissingExtra: its optional packages are not installed.
        ConfigError: it cannot be imported, or is not a subclass of `Environment`.
    """
    found: Any = name
    if isinstance(name, str) and name.startswith(OPENENV):
        found = ENVIRONMENTS.load("openenv").at(name.removeprefix(OPENENV))
    elif isinstance(name, str):
        found = import_named(name) if ":" in name else ENVIRONMENTS.load(name)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ConfigError(f"{name!r} is not an environment: it must be a subclass of paragent.Environment")
    return found


def open_environment(
    name: str | type[Environment], options: Mapping[str, Any] | None = None, *, shared: SharedResources | None = None
) -> Environment:
    """Return a new environment for one attempt; the caller owns it and closes it.

    Args:
        name: as for `environment_class`.
        options: its options.
        shared: the resources of the worker; None: the environment has its own and closes them with itself.

    Raises:
        UnknownName: no environment has this name.
        MissingExtra: its optional packages are not installed.
        ConfigError: it is not a subclass of `Environment`, or an option is unknown or has the wrong type.
    """
    return environment_class(name)(options, shared=shared)
