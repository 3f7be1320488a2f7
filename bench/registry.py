"""The table of all measurements: modules, each with `MEASUREMENTS`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.measure import Measurement

__all__ = ["SUBJECTS", "measurements"]

SUBJECTS = (
    "bench.trivial_tasks",
    "bench.waiting",
    "bench.blocking",
    "bench.computing",
    "bench.first_answer",
    "bench.streaming",
    "bench.clusters",
    "bench.answers",
    "bench.engine_starts",
    "bench.aworld",
    "bench.remote",
    "bench.pool",
    "bench.desktops",
    "bench.rollouts",
    "bench.recording",
    "bench.rate_limits",
    "bench.gateway",
    "bench.viewers",
    "bench.view_large",
)
"""In the order of the results table. To add a subject, add a module and a line here."""


def measurements(only: list[str] | None = None) -> list[Measurement]:
    """Return all measurements, or those that are named.

    Raises:
        KeyError: no measurement has this name; the message lists the names.
    """
    known: dict[str, Measurement] = {}
    for subject in SUBJECTS:
        for measurement in importlib.import_module(subject).MEASUREMENTS:
            assert measurement.name not in known, f"two measurements are called {measurement.name}"
            known[measurement.name] = measurement
    if unknown := [name for name in only or () if name not in known]:
        raise KeyError(f"no measurement is called {unknown[0]!r}; there are: {', '.join(known)}")
    return [known[name] for name in only or known]
