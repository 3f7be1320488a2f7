"""Files that users write: settings (`--config`) and prices (`--prices`), as JSON, TOML or YAML."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

from paragent._internal.file_errors import unreadable
from paragent.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

    from paragent.rollout.config import RolloutConfig

__all__ = ["read_prices", "read_settings_file"]


def read_settings_file(path: Path) -> dict[str, Any]:
    """Return the settings of a JSON, TOML or YAML file.

    Raises:
        ConfigError: the file does not exist, or is not a mapping.
        MissingExtra: the file is YAML, and pyyaml is not installed.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            settings = json.loads(text)
        elif path.suffix == ".toml":
            settings = tomllib.loads(text)
        else:
            settings = _parse_yaml(text)
    except (OSError, ValueError) as error:
        raise ConfigError(unreadable(path, error)) from error
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(f"{path} must have one `key: value` for each setting, such as `num_rollouts: 8`")
    return settings


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("a YAML file", "rollout", "yaml") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ValueError(f"{place}{getattr(error, 'problem', None) or error}") from error


def read_prices(config: RolloutConfig) -> dict[str, dict[str, float]] | None:
    """Return the prices of the `model` and, if it is another model, of the `judge`; None if the model has no price.

    Raises:
        ConfigError: the file of prices cannot be read.
    """
    path = config.model.prices
    if path is None:
        return None
    entries, prices = read_settings_file(path), {}
    for role, model in {"model": config.model.name, "judge": config.environment.judge_model}.items():
        if model is None or (entry := entries.get(model)) is None:
            continue
        try:
            prices[role] = {name: float(entry[name]) for name in ("input", "output")}
        except (TypeError, KeyError, ValueError) as error:
            example = json.dumps({model: {"input": 2.0, "output": 8.0}})
            raise ConfigError(f"{path}: the price of {model} needs two numbers, as in {example}") from error
    return prices if "model" in prices else None
