"""Every mistake of the table gives a short message with the cure and a non-zero exit status, and no traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.mistakes.mistake import Mistake, make
from tests.mistakes.table import TABLE

if TYPE_CHECKING:
    from pathlib import Path

_MOST_LINES = 3
_MOST_CHARACTERS = 400


def _row(mistake: Mistake) -> Any:
    slow = [pytest.mark.slow] if mistake.in_own_process or mistake.waits else []
    return pytest.param(mistake, id=mistake.title.replace(" ", "-"), marks=slow)


@pytest.mark.parametrize("mistake", [_row(mistake) for mistake in TABLE])
def test_a_mistake_gives_a_message_with_the_cure(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = make(mistake, tmp_path, monkeypatch, capsys)
    shown = f"{outcome.output}\n{outcome.errors}"
    message = " ".join(outcome.message.replace(str(tmp_path), "...").split())
    assert outcome.status == mistake.status, shown
    for words in mistake.says:
        assert words in message, shown
    if not mistake.program:
        assert "Traceback" not in shown
    if not mistake.lists_names:
        assert len(message) <= _MOST_CHARACTERS, message
        assert len(outcome.message.splitlines()) <= _MOST_LINES, outcome.message


def test_the_titles_of_mistakes_are_unique() -> None:
    assert len({mistake.title for mistake in TABLE}) == len(TABLE) >= 100
