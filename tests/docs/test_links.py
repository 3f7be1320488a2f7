"""Links of the documentation point to files and headings that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
SITE = "https://paragent.github.io/paragent/"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_point_to_existing_files_and_headings(page: Path) -> None:
    broken = []
    for target in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken, broken


def test_addresses_of_the_site_are_those_of_pages() -> None:
    sources = [
        path for path in (ROOT / "src" / "paragent").rglob("*") if path.suffix in {".py", ".md", ".toml", ".html"}
    ]
    sources += [*PAGES, ROOT / "pyproject.toml", ROOT / "mkdocs.yml"]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sources}
    texts["README.md on PyPI"] = readme_on_pypi()
    found = {
        (name, page) for name, text in texts.items() for page in re.findall(rf"{re.escape(SITE)}([^\s\"'<>`)#]*)", text)
    }
    assert len({name for name, _ in found}) >= 3  # otherwise the expression finds nothing
    wrong = [(name, page) for name, page in sorted(found) if not is_page(page)]
    assert not wrong, wrong


def readme_on_pypi() -> str:
    """Return the README with absolute links. In a process of its own: setuptools replaces distutils, if that is not imported."""
    program = "import pathlib, setup; print(setup.absolute_links(pathlib.Path('README.md').read_text(), '0'))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=100
    )
    return done.stdout


def is_page(address: str) -> bool:
    """Return whether an address, relative to the site, is that of a page: a folder with a slash at the end."""
    folder = ROOT / "docs" / address
    if address and not address.endswith("/"):
        return False
    return (folder / "index.md").is_file() or (address != "" and folder.with_suffix(".md").is_file())
