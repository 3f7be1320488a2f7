"""The Chinese pages have the same structure as the English ones: headings, code, tables, images and links."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, read_page

TRANSLATED = {
    Path("README.md"): Path("README.zh.md"),
    **{
        Path("docs", *parts): Path("docs", "zh", *parts)
        for parts in (
            ("tutorials", "tasks.md"),
            ("tutorials", "remote_agents.md"),
            ("tutorials", "rollouts.md"),
            ("guide", "rollouts.md"),
        )
    },
}
BLOCK = re.compile(r"^ *```.*?^ *```\s*?$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(^|\s)#(?!!)( .*)?$", re.MULTILINE)


def text_without_code(page: Path) -> str:
    return re.sub(r"<!--.*?-->", "", BLOCK.sub("", (ROOT / page).read_text()), flags=re.DOTALL)


def headings(page: Path) -> list[tuple[int, list[str]]]:
    """Return the level of each heading, and the code in it."""
    found = re.findall(r"^(#+) (.*)$", text_without_code(page), re.MULTILINE)
    return [(len(marks), re.findall(r"`[^`]+`", title)) for marks, title in found]


def code(page: Path) -> list[tuple[str, str, str]]:
    """Return the language, the file and the code of each block, without comments, which may be translated."""
    blocks = [block for block in read_page(page).steps if block.language != "setup"]
    return [(block.language, block.title, re.sub(r"\s+", " ", COMMENT.sub("", block.body))) for block in blocks]


def sections(page: Path) -> list[str]:
    return re.split(r"^#+ .*$", text_without_code(page), flags=re.MULTILINE)


def rows(section: str) -> int:
    return len(re.findall(r"^\|", section, re.MULTILINE))


def links(page: Path) -> set[str]:
    """Return the files that a page links to; a translated page counts as its original."""
    originals = {str(chinese): str(english) for english, chinese in TRANSLATED.items()}
    found = set()
    for target in re.findall(r"\]\(([^)\s#]+)", text_without_code(page)):
        path = target if ":" in target else posixpath.normpath(posixpath.join(page.parent.as_posix(), target))
        found.add(originals.get(path, path))
    return found - {"README.md"}


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED.items(), ids=lambda page: str(page))
def test_a_translation_follows_its_original(english: Path, chinese: Path) -> None:
    assert headings(chinese) == headings(english)
    assert code(chinese) == code(english)
    assert [rows(section) for section in sections(chinese)] == [rows(section) for section in sections(english)]
    assert links(chinese) == links(english)


def test_every_chinese_page_is_a_translation() -> None:
    pages = {path.relative_to(ROOT) for path in [*ROOT.glob("*.zh.md"), *(ROOT / "docs" / "zh").rglob("*.md")]}
    assert pages == {*TRANSLATED.values(), Path("docs/zh/index.md")}
