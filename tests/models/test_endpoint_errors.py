"""Errors of endpoints: messages, causes and `Retry-After`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent._internal.tracebacks import described, root_cause
from paragent.errors import EndpointDown
from paragent.models.retry import retry_after

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "60"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after": "3600"}, 120.0),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "1e400"}, None),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10.0),
        ({"retry-after": "Tue, 14 Nov 2000 22:13:30 GMT"}, 0.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, None),
        ({"retry-after": "Fri, 99 Foo"}, None),
    ],
)
def test_retry_after_is_parsed(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text() | st.floats().map(str)))
def test_retry_after_is_limited_for_any_header(headers: dict[str, str]) -> None:
    seconds = retry_after(headers, NOW)
    assert seconds is None or (math.isfinite(seconds) and 0 <= seconds <= 120)


def test_the_root_cause_is_named() -> None:
    first, second, silent = ConnectionRefusedError("nobody there"), RuntimeError("failed"), ValueError("")
    second.__cause__ = silent
    silent.__cause__ = first
    assert root_cause(second) is first
    assert described(second) == "RuntimeError: failed (caused by ConnectionRefusedError: nobody there)"
    first.__cause__ = second
    assert root_cause(second) is first, "a circle ends"
    down = EndpointDown("down: nobody there")
    down.__cause__ = first
    assert described(down) == "EndpointDown: down: nobody there"
