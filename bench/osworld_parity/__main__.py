"""Compare paragent's metrics with OSWorld's and fail if more results of a metric differ than `allowed.json` allows.

python -m bench.osworld_parity                     install OSWorld's package if it is missing, and compare
python -m bench.osworld_parity --metric check_json compare one metric and show the cases that differ
python -m bench.osworld_parity --python P --tree T compare with the sources in T, run by the interpreter P
python -m bench.osworld_parity --write             write the differences found into `allowed.json`
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import venv
import warnings
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.osworld_parity.cases import generate
from bench.osworld_parity.ours import score_of

if TYPE_CHECKING:
    from bench.osworld_parity.cases.case import Case

HERE = Path(__file__).parent
ALLOWED = HERE / "allowed.json"
ENVIRONMENT = HERE.parent / "peers" / "desktop_env"
VERSION = "desktop-env==1.0.2"
NEEDED = (
    *(
        "PyMuPDF",
        "PyPDF2",
        "beautifulsoup4",
        "cssselect",
        "fastdtw",
        "formulas",
        "imagehash",
        "librosa",
        "lxml",
        "mutagen",
    ),
    *("numpy<2", "odfpy", "opencv-python-headless<4.12", "openpyxl", "pandas<2.3", "pdfplumber", "pillow", "pypdf"),
    *(
        "python-docx",
        "python-pptx",
        "pyyaml",
        "rapidfuzz",
        "requests",
        "scikit-image",
        "scipy",
        "tldextract",
        "xmltodict",
    ),
)
"""The packages that its metrics import, without PyTorch."""
SAME = 1e-6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", action="append", help="only cases of this module; may be given several times")
    parser.add_argument("--metric", action="append", help="only this one; may be given several times")
    parser.add_argument("--every", type=int, default=1, help="run only every N-th case, for a quick check")
    parser.add_argument("--python", help="the interpreter of an environment that has what the reference needs")
    parser.add_argument("--tree", help="a folder with the reference's sources, instead of the package from PyPI")
    parser.add_argument("--write", action="store_true", help="write the differences to allowed.json")
    chosen = parser.parse_args()
    python = chosen.python or str(_install())
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as temporary:
        generated = generate(Path(temporary, "files"), chosen.subject)
        cases = [case for case in generated if not chosen.metric or case.metric in chosen.metric][:: chosen.every]
        theirs = _reference(cases, python, chosen.tree, Path(temporary))
        ours = [score_of(case) for case in cases]
        return _compare(cases, ours, theirs, chosen)


def _install() -> Path:
    """Create an environment with OSWorld's package and the packages that its metrics import; return its interpreter."""
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / "ready"
    if not ready.exists():
        print(f"==> installing {VERSION} into {ENVIRONMENT} (some minutes, once)")
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *NEEDED], check=True)
        subprocess.run([*pip, "--no-deps", VERSION], check=True)  # last, because of its missing dependencies
        ready.touch()
    return python


def _reference(cases: list[Case], python: str, tree: str | None, folder: Path) -> list[float | None]:
    asked, answered = folder / "cases.jsonl", folder / "results.jsonl"
    asked.write_text("".join(f"{json.dumps(dataclasses.asdict(case))}\n" for case in cases))
    environment = {**os.environ, "PYTHONPATH": tree or "", "PYTHONWARNINGS": "ignore"}
    command = [python, str(HERE / "reference.py"), str(asked), str(answered)]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    found = [json.loads(line) for line in answered.read_text().splitlines()]
    return [0.0 if score is not None and math.isnan(score) else score for score in found]


def _compare(cases: list[Case], ours: list[float], theirs: list[float | None], chosen: Any) -> int:
    counts: dict[str, int] = defaultdict(int)
    differing: dict[str, list[tuple[Case, float, float]]] = defaultdict(list)
    for case, mine, reference in zip(cases, ours, theirs, strict=True):
        if reference is None:
            continue
        counts[case.metric] += 1
        if abs(mine - min(max(reference, 0.0), 1.0)) > SAME:
            differing[case.metric].append((case, mine, reference))
    absent = sorted({case.metric for case, reference in zip(cases, theirs, strict=True) if reference is None})
    allowed = json.loads(ALLOWED.read_text()) if ALLOWED.exists() else {}
    if chosen.write:
        why = {metric: entry["why"] for metric, entry in allowed.items()}
        table = {name: {"differ": len(found), "why": why.get(name, "?")} for name, found in sorted(differing.items())}
        ALLOWED.write_text(json.dumps(table, indent=2) + "\n")
        allowed = table
    return _report(counts, differing, allowed, absent, shown=bool(chosen.metric))


def _report(
    counts: dict[str, int],
    differing: dict[str, list[tuple[Case, float, float]]],
    allowed: dict[str, dict[str, Any]],
    absent: list[str],
    *,
    shown: bool,
) -> int:
    failed = []
    print(f"{'metric':50} {'cases':>6} {'differ':>7} {'allowed':>8}")
    for metric in sorted(counts):
        found, limit = differing[metric], allowed.get(metric, {}).get("differ", 0)
        if len(found) > limit:
            failed.append(metric)
        why = allowed.get(metric, {}).get("why", "") if found else ""
        print(f"{metric:50} {counts[metric]:6} {len(found):7} {limit:8}  {why}")
        for case, mine, reference in found if shown else found[:3] if len(found) > limit else []:
            print(f"    ours {mine:.6g}, OSWorld {reference:.6g}: {case.arguments} {case.options}")
    total = sum(map(len, differing.values()))
    print(f"{sum(counts.values())} results of {len(counts)} metrics, {total} differ")
    if absent:
        print(f"not in the reference: {', '.join(absent)}")
    if failed:
        print(f"more results differ than allowed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
