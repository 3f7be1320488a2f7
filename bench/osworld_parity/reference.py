"""Run cases with OSWorld's own metrics. It runs in their environment and imports nothing of paragent.

Usage: python reference.py CASES RESULTS. Each line of RESULTS is a number, the name of an exception, or null for a missing
metric.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import types
from pathlib import Path
from unittest import mock

FAKES = ("easyocr", "borb", "borb.pdf", "acoustid")
"""Packages that OSWorld imports and that no case needs."""


def _stand_in(name: str) -> None:
    module = types.ModuleType(name)
    module.__getattr__ = lambda attribute: mock.MagicMock(name=attribute)
    module.__path__ = []
    sys.modules[name] = module


def _score(metrics: types.ModuleType, case: dict) -> float | str | None:
    metric = getattr(metrics, case["metric"], None)
    if metric is None:
        return None
    try:
        return float(metric(*case["arguments"], **case["options"]))
    except Exception as error:  # noqa: BLE001 - anything may happen to a metric
        return type(error).__name__


def main(cases: str, results: str) -> None:
    logging.disable(logging.CRITICAL)
    for name in FAKES:
        _stand_in(name)
    from desktop_env.evaluators import metrics

    with Path(cases).open() as lines, Path(results).open("w") as out, Path(os.devnull).open("w") as quiet:
        for line in lines:
            with contextlib.redirect_stdout(quiet):
                score = _score(metrics, json.loads(line))
            out.write(f"{json.dumps(score)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
