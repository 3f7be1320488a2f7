"""The page docs/troubleshooting.md has an entry for every mistake of the table, and no messages that paragent does not print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mistakes.mistake import Mistake
from tests.mistakes.table import TABLE

_PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_BLOCKS = [" ".join(block.split()) for block in re.findall(r"^```text\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)]
"""The messages of each entry, without line breaks."""
_ENTRY = re.compile(r"^### .*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)


def _is_in(mistake: Mistake, block: str) -> bool:
    return all(words in block for words in mistake.says)


@pytest.mark.parametrize("mistake", TABLE, ids=lambda mistake: mistake.title.replace(" ", "-"))
def test_a_mistake_has_an_entry(mistake: Mistake) -> None:
    assert any(_is_in(mistake, block) for block in _BLOCKS), (
        f"add the message to docs/troubleshooting.md: {mistake.says}"
    )


def test_every_entry_has_messages_of_the_table() -> None:
    unknown = [block for block in _BLOCKS if not any(_is_in(mistake, block) for mistake in TABLE)]
    assert _BLOCKS
    assert not unknown


def test_every_entry_says_what_to_do() -> None:
    entries = [entry for entry in _ENTRY.findall(_PAGE) if "```text" in entry]
    assert len(entries) == len(_BLOCKS)
    assert all(len(entry.rpartition("```")[2].split()) >= 8 for entry in entries)
