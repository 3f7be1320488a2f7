"""Style sheets of the web pages: all of them apply to all pages."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "web" / "src"


def test_a_class_has_its_rules_in_one_file() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for file in SOURCES.rglob("*.css"):
        for name in re.findall(r"^\.([\w-]+)(?: \{|,)$", file.read_text(), re.MULTILINE):
            places[name].add(str(file.relative_to(SOURCES)))
    assert len(places) > 50
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
