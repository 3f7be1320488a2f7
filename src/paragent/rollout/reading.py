"""Settings from files: JSON, TOML or YAML, by their endings."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_settings"]


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
