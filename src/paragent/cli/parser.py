"""The argument parser of the commands: short errors that suggest the nearest command or flag."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CommandParser"]

_WRONG_USAGE = 2
_SHORT = 3
"""Letters of a name that is similar to many others, such as csh to zsh: only names with the same first letter are suggested."""
_REQUIRED = "the following arguments are required: "
"""The beginning of a message of argparse."""


class CommandParser(argparse.ArgumentParser):
    """Parses a command or, with subcommands, the name of one.

    An error is one line without the list of all flags, which has 80 lines for `paragent rollout`. A command without the
    subcommand that it needs prints its help. Flags cannot be abbreviated: `--attempt 3` would start three attempts.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with status 2."""
        if message.startswith(_REQUIRED):
            if self._subparsers is not None:
                self.print_help(sys.stderr)
                self.exit(_WRONG_USAGE)
            message = f"missing: {message.removeprefix(_REQUIRED)}{self._choices()}"
        see = " See" if message.endswith("?") else "; see"
        self.exit(_WRONG_USAGE, f"{self.prog}: {message}{see} `{self.prog} --help`\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. A command reports those that it does not know itself: argparse would do it without its name."""
        first = next(iter(sys.argv[1:] if args is None else args), "").partition("=")[0]
        if first.startswith("--") and first != "--" and first not in self._option_string_actions:
            self._reject([first])  # argparse would say that the command is missing
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._reject(unknown)
        return known, unknown

    def _choices(self) -> str:
        """Return the values of the only required argument; empty if there are several, or any value is possible."""
        required = [action for action in self._actions if action.required]
        if len(required) != 1 or not required[0].choices:
            return ""
        return f", one of {', '.join(map(str, required[0].choices))}"

    def _reject(self, unknown: list[str]) -> NoReturn:
        flag = next((one.partition("=")[0] for one in unknown if one.startswith("-") and one != "--"), None)
        if flag is None:
            self.error(f"unexpected argument {unknown[-1]!r}")
        self.error(f"there is no flag {flag}{_suggestion(flag, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            suggestion = _suggestion(str(value), map(str, action.choices))
            if isinstance(action, argparse._SubParsersAction):
                self.error(f"there is no command {value!r}{suggestion}")
            choices = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r} is not one of {choices}{suggestion}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    name = name.lstrip("-")
    bare = {one.lstrip("-"): one for one in known}  # the dashes would make all flags similar
    possible = [one for one in bare if len(name) > _SHORT or one[:1] == name[:1]]
    close = difflib.get_close_matches(name, possible, n=1, cutoff=0.65)
    return f"; did you mean {bare[close[0]]}?" if close else ""
