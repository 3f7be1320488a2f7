"""The engine contract on every engine."""

from __future__ import annotations

from paragent.testing import EngineContract, IsolationContract


class TestInline(EngineContract):
    settings = {"engine_name": "inline"}  # noqa: RUF012 - the suite's own annotation makes it a class variable


class TestLocal(IsolationContract):
    settings = {"engine_name": "local"}  # noqa: RUF012
