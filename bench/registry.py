"""The table of all measurements: groups of modules, each with `MEASUREMENTS`."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.measure import Measurement

__all__ = ["GROUPS", "measurements"]

GROUPS = {
    "Tasks": (
        "bench.trivial_tasks",
        "bench.waiting",
        "bench.blocking",
        "bench.computing",
        "bench.first_answer",
        "bench.streaming",
        "bench.answers",
    ),
    "Clusters and AWorld": ("bench.clusters", "bench.engine_starts", "bench.aworld"),
    "Remote agents": ("bench.remote",),
    "Machines": ("bench.pool", "bench.desktops"),
    "Rollouts": ("bench.rollouts", "bench.recording"),
    "Gateway": ("bench.gateway",),
    "View": ("bench.viewers", "bench.view_large"),
    "Rate limits": ("bench.rate_limits",),
}
"""In the order of the results. To add a subject, add a module and its name here."""


def measurements(only: list[str] | None = None) -> list[Measurement]:
    """Return all measurements, or those that are named.

    Raises:
        KeyError: no measurement has this name; the message lists the names.
    """
    known: dict[str, Measurement] = {}
    for group, modules in GROUPS.items():
        for module in modules:
            for measurement in importlib.import_module(module).MEASUREMENTS:
                assert measurement.name not in known, f"two measurements are called {measurement.name}"
                known[measurement.name] = replace(measurement, group=group)
    if unknown := [name for name in only or () if name not in known]:
        raise KeyError(f"no measurement is called {unknown[0]!r}; there are: {', '.join(known)}")
    return [known[name] for name in only or known]
