"""Getters of a task's own rules, including dates relative to today."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from paragent.osworld.evaluators.supported import UnsupportedCheck, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paragent.osworld.context import GetterContext

__all__ = ["day_of", "fill_in", "rule", "rule_relativeTime"]

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905 - a table of words
_MONDAY, _FRIDAY, _SATURDAY, _SUNDAY = 0, 4, 5, 6


async def rule(context: GetterContext, config: Mapping[str, Any]) -> Any:
    """Return the rule of the task."""
    return config["rules"]


def _check_dates(config: Mapping[str, Any]) -> None:
    words = config["rules"]["relativeTime"]
    for phrase in (words["from"], words.get("to", words["from"])):
        if phrase.removesuffix(" split") not in _DAYS:
            raise UnsupportedCheck(f"unknown date {phrase!r}")


@checked(config=_check_dates)
async def rule_relativeTime(context: GetterContext, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule of the task with its date placeholders replaced.

    Today is the date in the rule's time zone, or the date of the machine's clock if the rule names no time zone.
    """
    given = config["rules"]
    zone = given.get("timezone")
    now = dt.datetime.now(_zone(zone)).date() if zone else await _today(context)
    words = given["relativeTime"]
    start = day_of(words["from"], now)
    expected = dict(given["expected"])
    if "to" not in words:
        expected["time"] = fill_in(expected["time"], start)
    else:
        for day, key, split in ((start, "from", "pu"), (_end(words, start, now), "to", "do")):
            keys = [f"{split}{part}" for part in ("Day", "Month", "Year")] if words[key].endswith(" split") else [key]
            expected |= {one: fill_in(expected[one], day) for one in keys}
    return {**given, "expected": expected}


async def _today(context: GetterContext) -> dt.date:
    """Return the date of the machine's clock; this host's date in UTC if the machine does not tell."""
    done = await context.attempt.controller.execute(["python3", "-c", "import datetime; print(datetime.date.today())"])
    try:
        return dt.date.fromisoformat(done.output.strip())
    except ValueError:
        return dt.datetime.now(dt.UTC).date()


def _zone(name: str) -> dt.tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return dt.UTC


def _end(words: Mapping[str, str], start: dt.date, now: dt.date) -> dt.date:
    """Return the second date of a range. If the first names a week, the second is in the same week."""
    first, last = words["from"].removesuffix(" split"), words["to"].removesuffix(" split")
    if first == "next Monday" and last == "next Friday":
        return start + dt.timedelta(days=_FRIDAY)
    same_week = {
        "next Sunday": ("next Friday", "next Saturday"),
        "next week Sunday": ("next week Friday", "next week Saturday"),
    }
    if first in same_week.get(last, ()):
        return start + dt.timedelta(days=_SUNDAY - start.weekday())
    return day_of(last, now)


def day_of(words: str, now: dt.date) -> dt.date:
    """Return the date that a phrase means.

    Raises:
        KeyError: the phrase is unknown.
    """
    return _DAYS[words.removesuffix(" split")](now)


def _days(count: int) -> Callable[[dt.date], dt.date]:
    return lambda now: now + dt.timedelta(days=count)


def _this(weekday: int) -> Callable[[dt.date], dt.date]:
    return lambda now: now + dt.timedelta(days=weekday - now.weekday())


def _next(weekday: int) -> Callable[[dt.date], dt.date]:
    """The next one; on that weekday itself, the one a week later."""
    return lambda now: now + dt.timedelta(days=(weekday - now.weekday() - 1) % 7 + 1)


def _next_week(weekday: int) -> Callable[[dt.date], dt.date]:
    return lambda now: now + dt.timedelta(days=7 - now.weekday() + weekday)


def _next_month(day: int) -> Callable[[dt.date], dt.date]:
    return lambda now: _month(now, 1).replace(day=day)


def _first_monday(months: int) -> Callable[[dt.date], dt.date]:
    def monday(now: dt.date) -> dt.date:
        first = _month(now, months)
        return first + dt.timedelta(days=-first.weekday() % 7)

    return monday


def _month(now: dt.date, later: int) -> dt.date:
    """Return the first day of the month `later` months after this one."""
    years, month = divmod(now.month - 1 + later, 12)
    return dt.date(now.year + years, month + 1, 1)


_DAYS: dict[str, Callable[[dt.date], dt.date]] = {
    "tomorrow": _days(1),
    "this month": _days(0),
    "this Saturday": _this(_SATURDAY),
    "this Sunday": _this(_SUNDAY),
    "next Monday": _next(_MONDAY),
    "next Friday": _next(_FRIDAY),
    "next Saturday": _next(_SATURDAY),
    "next Sunday": _next(_SUNDAY),
    "next week Friday": _next_week(_FRIDAY),
    "next week Saturday": _next_week(_SATURDAY),
    "next week Sunday": _next_week(_SUNDAY),
    "5th next month": _next_month(5),
    "10th next month": _next_month(10),
    "11th next month": _next_month(11),
    "first monday four months later": _first_monday(4),
    "first monday eight months later": _first_monday(8),
}


def fill_in(form: Any, day: dt.date) -> Any:
    """Return a string, or each string of a list, with each placeholder replaced once by a part of a date."""
    if isinstance(form, list):
        return [fill_in(one, day) for one in form]
    month = _MONTHS[day.month - 1]
    parts = {
        "DoW": _WEEKDAYS[day.weekday()],
        "Month": month[:3],
        "DayD": str(day.day),
        "Year": str(day.year),
        "Month0D": f"{day.month:02}",
        "month": month.lower(),
        "MonthFull": month,
        "Day0D": f"{day.day:02}",
        "MonthD": str(day.month),
    }
    for name, value in parts.items():
        form = form.replace(f"{{{name}}}", value, 1)
    return form
