"""`python -m bench.peers`: create the virtual environments of peers whose packages conflict with paragent's; takes minutes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_PEERS = {"inspect_ai": ["inspect_ai", "openai"], "harbor": ["harbor"], "verifiers": ["verifiers==0.4.0"]}
_NEWER = {"harbor": (3, 12)}
"""Peers that need a later version of Python than paragent. BENCH_PYTHON names one; else `python3.12` or later on the path."""


def _python(oldest: tuple[int, int]) -> str | None:
    """Return an interpreter of at least this version."""
    names = [sys.executable, os.environ.get("BENCH_PYTHON", ""), *(f"python3.{minor}" for minor in range(12, 16))]
    check = f"import sys; sys.exit(sys.version_info < {oldest})"
    for found in filter(None, map(shutil.which, filter(None, names))):
        if subprocess.run([found, "-c", check], check=False, capture_output=True).returncode == 0:
            return found
    return None


if __name__ == "__main__":
    for name, packages in _PEERS.items():
        python = _HERE / name / "bin" / "python"
        if not python.exists():
            print(f"==> {name}", file=sys.stderr)
            oldest = _NEWER.get(name, (3, 11))
            interpreter = _python(oldest)
            if interpreter is None:
                print(f"{name} needs Python {oldest[0]}.{oldest[1]}; set BENCH_PYTHON to one", file=sys.stderr)
                continue
            subprocess.run([interpreter, "-m", "venv", str(_HERE / name)], check=True, timeout=120)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True, timeout=900)
