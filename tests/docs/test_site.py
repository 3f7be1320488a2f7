"""The documentation site builds without warnings, has no dead link, and documents every public name."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import griffe
import pytest

from tests.docs.pages import ROOT

PUBLIC_MODULES = ("paragent", "paragent.testing", "paragent.training")
REFERENCE = ROOT / "docs" / "reference"


class PageLinks(HTMLParser):
    """The links and anchors of a page of the site."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value is not None:
                self.links.append(value)
            elif name in {"id", "name"} and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_no_dead_links_and_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = {page: PageLinks(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) >= 60
    dead = []
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors
            ):
                dead.append((str(page.relative_to(site)), link))
    assert not dead
    loaded = [
        link
        for page in pages
        for link in re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*https?://[^>]*>', page.read_text())
    ]
    assert not loaded


@pytest.mark.slow
def test_the_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "docs/make_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def public_names() -> Iterator[str]:
    for module in PUBLIC_MODULES:
        for name in importlib.import_module(module).__all__:
            yield f"{module}.{name}"


def test_every_public_name_is_in_the_reference_once() -> None:
    shown = [
        name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(shown) == sorted(public_names())


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    extensions = griffe.load_extensions(str(ROOT / "docs" / "griffe_settings.py"))
    loader = griffe.GriffeLoader(search_paths=[str(ROOT / "src")], extensions=extensions)
    loaded = loader.load("paragent")
    loader.resolve_aliases(implicit=True, external=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


@pytest.mark.slow
def test_every_public_name_and_its_members_have_a_docstring(package: griffe.Module) -> None:
    """Tests of contract suites need none: their name documents them."""
    missing = []
    for name in public_names():
        found = package[name.removeprefix("paragent.")]
        thing = found.final_target if found.is_alias else found
        missing += [name] * (not thing.has_docstring)
        members = thing.members if thing.is_class else {}
        for member in members.values():
            if not (member.name.startswith(("_", "test_")) or member.is_alias or has_docstring(thing, member.name)):
                missing.append(f"{name}.{member.name}")
    assert not missing


def has_docstring(cls: griffe.Object | griffe.Alias, name: str) -> bool:
    """Whether a member has a docstring, its own or that of the contract that it implements."""
    assert isinstance(cls, griffe.Class)
    return any(name in one.members and one.members[name].has_docstring for one in [cls, *cls.mro()])
