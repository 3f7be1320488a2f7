"""Metrics about addresses, pages and the accessibility tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Score = Callable[..., float]

ADDRESSES = [
    ("https://www.airbnb.com/", "https://airbnb.com.sg", True),
    ("http://x.org", "https://x.org", False),
    ("github.com", "http://github.com/", True),
    ("https://docs.python.org/3/", "https://docs.python.org/3/", True),
    ("https://docs.python.org/3/", "https://python.org/3/", False),
    ("https://x.org/a?b=1", "https://x.org/a?b=2", False),
    ("https://x.org/a#f", "https://x.org/a", False),
    ("chrome://newtab/", "chrome://newtab/", True),
    ("http://localhost:8000/a", "http://localhost:8000/a", True),
]


@pytest.mark.parametrize(("one", "other", "same"), ADDRESSES)
def test_addresses(score: Score, one: str, other: str, same: bool) -> None:
    assert score("is_expected_active_tab", {"url": one}, {"type": "url", "url": other}) == same
    assert score("is_expected_active_tab", one, {"type": "url", "url": other}) == same
    assert score("is_expected_tabs", [{"url": one}], {"type": "url", "urls": [other]}) == same


def test_tabs_must_be_as_many_as_expected(score: Score) -> None:
    rules = {"type": "url", "urls": ["https://a.org", "https://b.org"]}
    assert score("is_expected_tabs", [{"url": "https://b.org/"}, {"url": "https://www.a.org"}], rules) == 1
    assert score("is_expected_tabs", [{"url": "https://a.org"}], rules) == 0
    assert score("is_expected_tabs", [], rules) == 0
    assert score("is_expected_active_tab", None, {"type": "url", "url": "https://a.org"}) == 0


def test_cookies_of_a_domain(score: Score) -> None:
    rules = {"type": "domains", "domains": [".amazon.com"]}
    assert score("is_cookie_deleted", [[1, ".google.com", "x"]], rules) == 1
    assert score("is_cookie_deleted", [[1, ".google.com"], [2, ".amazon.com"]], rules) == 0


TREE = """<desktop-frame xmlns:attr="https://accessibility.ubuntu.example.org/ns/attributes">
<application name="Thunderbird"><page-tab-list attr:id="tabmail-tabs"><page-tab name="About Profiles">Profiles</page-tab>
</page-tab-list><label name="Password">x</label></application></desktop-frame>"""
TAB = 'application[name=Thunderbird] page-tab-list[attr|id="tabmail-tabs"]>page-tab[name="About Profiles"]'


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ([{"selectors": [TAB]}], 1),
        ([{"selectors": ["nothing", TAB]}], 1),
        ([{"selectors": [TAB]}, {"xpath": "//application[@name='Thunderbird']//*[contains(@name, 'Pass')]"}], 1),
        ([{"selectors": [TAB]}, {"xpath": "//frame"}], 0),
        ([{"selectors": [TAB], "text": "Profiles", "exact": True}], 1),
        ([{"selectors": [TAB], "text": "Profile", "exact": True}], 0),
        ([{"selectors": [TAB], "text": "Profilex", "exact": False}], 0.875),
    ],
)
def test_the_accessibility_tree(score: Score, rules: Any, wanted: float) -> None:
    assert score("check_accessibility_tree", TREE, rules) == pytest.approx(wanted)


def test_pages(score: Score, write: Callable[..., str]) -> None:
    page = '<table><tr><td sdnum="1;0;0">3</td><td class="x">a</td></tr></table>'
    found = write("found.html", page.replace('sdnum="1;0;0"', 'sdnum="7"'))
    wanted = write("wanted.html", page)
    assert score("compare_htmls", found, wanted, ignore_sdnum=True) == 1
    assert score("compare_htmls", found, wanted) == 0
    assert score("compare_htmls", write("other.html", page.replace("3", "4")), wanted, ignore_sdnum=True) == 0
