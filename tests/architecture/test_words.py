"""Retired words do not come back: docs/glossary.md has the words that are used instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paragent.cli import main

ROOT = Path(__file__).parents[2]

RETIRED = {
    r"[Pp]arcels?": "payload",
    r"[Cc]odebook": "code cache",
    r"[Ff]ar[ _]sides?": "worker, receiver, server",
    r"[Nn]urser(y|ies)|[Nn]ursling|[Zz]ygote|[Ll]eash": "child pool, child, fork server, lifeline",
    r"[Mm]ailbox(es)?|Residents?|residents": "actor queue, registry",
    r"[Cc]rews?|[Ss]eats?|[Ll]anes?|Hands|Member": "workers, executor",
    r"[Ss]tations?": "node agent",
    r"[Ss]ettlements?|[Tt]idings|News|Owed": "outcome, response",
    r"[Ll]edgers?|[Kk]eepers?|[Dd]esk": "state machine, pool",
    r"[Pp]atience|[Pp]ace|Gate(Server|Client)?|gates?": "rate limit, time limit",
    r"[Tt]all(y|ies)|[Bb]oards?": "progress, live status",
    r"_?REPLAYS?|Play(ed|er|Status|Settings)?|PlayedEpisode|[Pp]lay(s|ed|ing)? (a|one|the) rollouts?": "rollout, retry",
    r"Item|StoredTask|stored tasks?": "task, benchmark task",
    r"Family|Families|[Ss]tand[-_ ]?ins?": "registry, fake",
    r"[Ll]ooker|[Ff]ronts|[Rr]eception": "iteration, listener",
    r"[Hh]ouse|[Rr]ooms|front door": "package, level, public names",
    r"[Aa]lbums?|[Ff]ilms?": "images, recording",
    r"[Ww]hoever|came of (it|them)": "name the subject",
}
"""Regular expressions of whole words, and the words to use. Words that are also ordinary English (item, hold, session, ...) are
checked only in the form of the retired class name."""

ALLOWED: dict[str, set[str]] = {
    "src/paragent/machines/providers/vmware.py": {"Player"},
    "src/paragent/osworld/evaluators/metrics": {"station", "album"},
}
"""Words that files use in their ordinary sense, by the path of the file or folder."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file of src and docs, and of the README."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    for path in sorted(files):
        yield str(path.relative_to(ROOT)), path.read_text()


def found(path: str, text: str) -> list[str]:
    """Return where `text` has retired words."""
    allowed = {word for prefix, words in ALLOWED.items() if path.startswith(prefix) for word in words}
    places = []
    for pattern, instead in RETIRED.items():
        for match in re.finditer(rf"\b({pattern})\b", text):
            if match.group() not in allowed:
                line = text.count("\n", 0, match.start()) + 1
                places.append(f"{path}:{line}: {match.group()!r}; use: {instead}")
    return places


def test_sources_and_documents_have_no_retired_words() -> None:
    places = [place for path, text in texts() for place in found(path, text)]
    assert not places, "\n".join(places)


def help_of(command: list[str], capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    """Yield the help of a command and of all its subcommands."""
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    text = capsys.readouterr().out
    yield " ".join(["paragent", *command]), text
    for match in re.finditer(r"^    (?P<name>[a-z][a-z-]*)(  .*)?$", text.partition("COMMAND\n")[2], re.MULTILINE):
        yield from help_of([*command, match["name"]], capsys)


def test_the_help_of_the_command_line_has_no_retired_words(capsys: pytest.CaptureFixture[str]) -> None:
    texts = dict(help_of([], capsys))
    assert {"paragent rollout", "paragent pool serve"} <= texts.keys()
    places = [place for command, text in texts.items() for place in found(command, text)]
    assert not places, "\n".join(places)
