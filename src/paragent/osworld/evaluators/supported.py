"""Checks of a task's rules and options: what metrics and getters support, known before a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["UnsupportedCheck", "check_config", "check_options", "check_rules", "checked", "difference_of", "one_of"]

F = TypeVar("F", bound=Callable[..., Any])


class UnsupportedCheck(ValueError):
    """A task uses something that a metric or getter does not support: a rule, a property, a file type.

    It is the only error of a metric that does not score 0, because it does not depend on the agent.
    """


def checked(
    *,
    rules: Callable[[Any], object] | None = None,
    options: Callable[..., object] | None = None,
    config: Callable[[Mapping[str, Any]], object] | None = None,
    differs: Callable[..., str] | None = None,
) -> Callable[[F], F]:
    """Declare the functions that check the rules and options of a metric, or the configuration of a getter.

    They raise `UnsupportedCheck`. `paragent osworld check` calls them for the rules in task files, and `score` before a metric.
    `differs` returns for options why the metric's score can differ from OSWorld's with the installed packages; empty if it does
    not.
    """

    def declare(function: F) -> F:
        vars(function).update(check_rules=rules, check_options=options, check_config=config, differs=differs)
        return function

    return declare


def check_rules(metric: Callable[..., Any], rules: Any) -> None:
    """Check the rules of a metric, which are its second argument.

    Raises:
        UnsupportedCheck: the metric does not support them.
        Exception: they are malformed.
    """
    if check := getattr(metric, "check_rules", None):
        check(rules)


def check_options(metric: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check the options of a metric; raises the same errors as `check_rules`."""
    if not isinstance(options, Mapping):
        raise UnsupportedCheck(f"the options are not an object: {options!r}")
    if check := getattr(metric, "check_options", None):
        check(**options)


def check_config(getter: Callable[..., Any], config: Mapping[str, Any]) -> None:
    """Check the configuration of a getter; raises the same errors as `check_rules`."""
    if check := getattr(getter, "check_config", None):
        check(config)


def difference_of(metric: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Return why the score of a metric can differ from OSWorld's; empty if it does not."""
    differs: Callable[..., str] | None = getattr(metric, "differs", None)
    return "" if differs is None else differs(**options)


def one_of(key: str, known: Collection[str], subject: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a check of rules: the value at `key` is one of the known ones."""

    def check(rules: Mapping[str, Any]) -> None:
        if rules[key] not in known:
            raise UnsupportedCheck(f"unknown rule {rules[key]!r} about {subject}")

    return check
