"""How paragent was installed, and the command that adds extras to this installation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["install_command", "source_tree"]


def source_tree() -> Path | None:
    """Return the folder of the clone from which paragent is imported, or None if it is an installed copy."""
    sources = Path(__file__).resolve().parents[1]
    root = sources.parent
    return root if sources.name == "src" and (root / "pyproject.toml").is_file() else None


def install_command(extras: Iterable[str] = ()) -> str:
    """Return the command that installs extras, or what every command needs, from the place that paragent was installed from.

    It installs into the environment of this program.
    """
    import shlex

    names = ",".join(sorted(set(extras)))
    flag, requirement = _requirement(f"[{names}]" if names else "")
    return f"{_pip_install()} {flag}{shlex.quote(requirement)}"


def _pip_install() -> str:
    """Return the beginning of the command: it names this environment unless a shell would choose it anyway."""
    import importlib.util
    import os
    import shlex
    import shutil
    import sys

    python = Path(sys.executable)
    here = _here()
    short = python.relative_to(here) if here and here in python.parents else python
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        is_active = os.environ.get("VIRTUAL_ENV") == sys.prefix
        return "uv pip install" if is_active else f"uv pip install --python {shlex.quote(str(short))}"
    found = shutil.which("pip")
    is_active = found is not None and Path(found).parent == python.parent
    return "pip install" if is_active else f"{shlex.quote(str(short))} -m pip install"


def _requirement(extras: str) -> tuple[str, str]:
    """Return pip's flag, if it needs one, and the requirement."""
    if tree := source_tree():
        return "-e ", f"{_from_here(tree)}{extras}"
    origin = _origin()
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = vcs.get("requested_revision") or vcs["commit_id"]
        return "", f"paragent{extras} @ {vcs['vcs']}+{url}@{revision}"
    if url.startswith("file:"):
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        return "", f"{_from_here(Path(url2pathname(urlsplit(url).path)))}{extras}"
    return "", f"paragent{extras} @ {url}" if url else f"paragent{extras}"


def _origin() -> dict[str, Any]:
    """Return `direct_url.json` of the installation (PEP 610); empty if paragent came from a package index."""
    import json
    from importlib import metadata

    try:
        text = metadata.distribution("paragent").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # copied by hand
        text = None
    return dict(json.loads(text)) if text else {}


def _from_here(path: Path) -> str:
    """Return a path as pip needs it: `.` for the current folder, otherwise the absolute path."""
    return "." if path == _here() else str(path)


def _here() -> Path | None:
    """Return the current folder, or None if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None
