"""The TypeScript declarations of the API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).parents[2] / "web"


def test_the_typescript_declarations_are_those_of_the_records(tmp_path: Path) -> None:
    script = tmp_path / "web" / "generate_api.py"
    script.parent.mkdir()
    script.write_text((WEB / "generate_api.py").read_text())
    subprocess.run([sys.executable, script], check=True, timeout=60)
    written = (script.parent / "src" / "api.ts").read_text()
    assert written == (WEB / "src" / "api.ts").read_text(), "run `python web/generate_api.py`"
