"""Run cases with OSWorld's own metrics. Started by the interpreter of the environment that has them; needs nothing else.

Usage: python reference.py CASES RESULTS. Each line of RESULTS is a number, or null for a metric that is not there.
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

STAND_INS = ("easyocr", "borb", "borb.pdf", "acoustid")
"""Packages that OSWorld imports and no case needs: a neural network, and two that are never called."""


def _stand_in(name: str) -> None:
    module = types.ModuleType(name)
    module.__getattr__ = lambda attribute: mock.MagicMock(name=attribute)
    module.__path__ = []
    sys.modules[name] = module


def _score(metrics: types.ModuleType, case: dict) -> float | None:
    metric = getattr(metrics, case["metric"], None)
    if metric is None:
        return None
    try:
        return float(metric(*case["arguments"], **case["options"]))
    except Exception:  # noqa: BLE001 - anything may happen to a metric
        return 0.0  # its runner writes no result for such a task, which is counted as 0


def main(cases: str, results: str) -> None:
    logging.disable(logging.CRITICAL)
    for name in STAND_INS:
        _stand_in(name)
    from desktop_env.evaluators import metrics

    with Path(cases).open() as lines, Path(results).open("w") as out, Path(os.devnull).open("w") as quiet:
        for line in lines:
            with contextlib.redirect_stdout(quiet):
                score = _score(metrics, json.loads(line))
            out.write(f"{json.dumps(score)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
