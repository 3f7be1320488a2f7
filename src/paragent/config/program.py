"""Settings of a whole program."""

from __future__ import annotations

import logging as _logging
import os
from typing import Any

from paragent.errors import ConfigError

__all__ = ["init"]


def init(
    *,
    token: str | None = None,
    project: str | None = None,
    name: str | None = None,
    logging: int | str | None = None,
) -> None:
    """Set what holds for the whole program. Never needed; calling it again changes what is given and nothing else.

    The settings are environment variables of this process, so that every process it starts has them too.

    Args:
        token: the secret that this program and its agent servers share (`PARAGENT_TOKEN`); without it programs of one
            user on one machine share a file that only they can read.
        project: what this program belongs to (`PARAGENT_PROJECT`). It is shown, with the name, where a program is one of
            many: as a client of agent servers (`paragent agents`) and as a holder of machines (`paragent pool status`).
        name: the name of this run of it (`PARAGENT_NAME`).
        logging: the level of messages that paragent logs, as `logging.INFO` or `"INFO"`.

    Raises:
        ConfigError: a setting is of the wrong type, or the token is too short to be a secret.
    """
    for variable, value in (("PARAGENT_TOKEN", token), ("PARAGENT_PROJECT", project), ("PARAGENT_NAME", name)):
        if value is not None:
            _require_text(variable, value)
            os.environ[variable] = value
    if logging is not None:
        try:
            _logging.getLogger("paragent").setLevel(logging)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"logging must be a level such as 'INFO', not {logging!r}") from error
        _logging.basicConfig()


def _require_text(variable: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{variable.removeprefix('PARAGENT_').lower()} must be a non-empty string, not {value!r}")
    if variable == "PARAGENT_TOKEN" and len(value) < 16:
        raise ConfigError("a token must have at least 16 characters, or it is no secret")
