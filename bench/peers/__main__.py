"""`python -m bench.peers`: create the virtual environments of peers whose packages conflict with paragent's; takes minutes."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

_HERE = Path(__file__).parent
_PEERS = {"inspect_ai": ["inspect_ai", "openai"]}

if __name__ == "__main__":
    for name, packages in _PEERS.items():
        python = _HERE / name / "bin" / "python"
        if not python.exists():
            print(f"==> {name}", file=sys.stderr)
            venv.create(_HERE / name, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True, timeout=900)
