"""The table of mistakes that new users make."""

from __future__ import annotations

from tests.mistakes import data, endpoints, engines, machines, own_code, programs, remote, runs, settings

__all__ = ["TABLE"]

_SUBJECTS = (settings, data, endpoints, own_code, engines, programs, remote, machines, runs)

TABLE = tuple(mistake for subject in _SUBJECTS for mistake in subject.MISTAKES)
