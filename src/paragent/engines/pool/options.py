"""Reading `RunConfig.engine_options`, where a misspelt key must not be ignored."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_options"]


def check_options(engine: str, given: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]) -> None:
    """Refuse options that the engine does not have, or of the wrong type.

    Raises:
        ConfigError: an option is unknown (the message lists the known ones) or has a value of the wrong type.
    """
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), list(known), n=1)
            hint = f", did you mean {close[0]!r}?" if close else "."
            listed = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"the engine {engine!r} has no option {name!r}{hint} Its engine_options are: {listed}")
        if isinstance(value, bool) or not isinstance(value, known[name]):
            kinds = " or ".join(kind.__name__ for kind in known[name])
            raise ConfigError(f"engine_options[{name!r}] must be a {kinds}, not {value!r}")
