"""Metrics of values, without files."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from bench.osworld_parity.cases.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TEXTS = [None, "", "abc", "ABC", "abcd", "a\nb", "ünïcode", "123", "xabcx"]
_ADDRESSES = [
    None,
    "",
    "https://www.example.com",
    "https://example.com/",
    "http://example.com",
    "example.com",
    "https://shop.example.co.uk/a/b?q=1#x",
    "https://shop.example.com/a/b?q=1#x",
    "https://example.com/a?q=2",
    "https://example.com/a?q=1",
    "chrome://settings/appearance",
    "http://localhost:8080/x;y?z",
    "https://192.168.0.1/",
]


def cases(_: Path) -> Iterator[Case]:
    yield from _texts()
    yield from _objects()
    yield from _addresses()
    yield from _browser()
    yield from _desktop()
    yield from _trees()


def _texts() -> Iterator[Case]:
    for found, wanted in itertools.product(_TEXTS, _TEXTS):
        yield Case("exact_match", [found, {"expected": wanted}])
        yield Case("fuzzy_match", [found, {"expected": wanted}])
        yield Case("match_in_list", [found, {"expected": [wanted, "abc"]}])
        yield Case("is_in_list", [[found, "q"] if found else found, {"expected": wanted}])
        for options in ({}, {"ignore_case": True}, {"type": "str", "ignore_case": True}):
            yield Case("literal_match", [found, wanted], options)
        if wanted is not None:
            yield Case("check_include_exclude", [found, {"include": [wanted], "exclude": ["zz"]}])
            yield Case("check_include_exclude", [found, {"include": [], "exclude": [wanted]}])
            for kind in ("contain", "not_contain"):
                yield Case("is_extension_installed", [found, {"type": kind, "expected": wanted}])
            yield Case("is_in_vm_clickboard", [{"expected": wanted}, found])
            yield Case("is_in_vm_clickboard", [{"expected": [wanted, "a"]}, found])
    lists: list[Any] = [[], ["a"], ["A"], ["a", "b"], [1, 2], ["1", "2"], "a", None, {"a": 1}]
    for found, wanted in itertools.product(lists, lists):
        for ignore in (True, False):
            yield Case("literal_match", [found, wanted], {"type": "list", "ignore_case": ignore})


def _objects() -> Iterator[Case]:
    found: list[Any] = [
        None,
        "",
        "not json",
        "{'a': 'x'}",
        '{"a": "x", "b": "y"}',
        {"a": "x"},
        {"a": ["x", "y"]},
        {"a": ["y", "x"], "b": "z"},
        {"a": None},
        {"a": 3},
        {"a": "xyz"},
        {},
        [],
        ["a"],
        3,
    ]
    wanted: list[Any] = [
        {"a": "x"},
        {"a": ["x", "y"]},
        {"a": ["x"]},
        {"a": ["q", 3]},
        {"a": 3},
        {"a": None},
        {},
        {"a": "__EVALUATION_FAILED__"},
        {"a": ["x", "y"], "ignore_list_order": True},
        {"b": "y"},
        {"a": "yz"},
        {"a": ""},
    ]
    for one, other, within in itertools.product(found, wanted, (None, True, False)):
        rules = {"expected": other} if within is None else {"expected": other, "expect_in_result": within}
        yield Case("check_direct_json_object", [one, rules])


def _addresses() -> Iterator[Case]:
    for found, wanted in itertools.product(_ADDRESSES, _ADDRESSES):
        for tab in (found, {"url": found, "title": "t"}, {"title": "t"}):
            if wanted is not None:
                for metric in ("is_expected_active_tab", "is_expected_active_tab_approximate"):
                    yield Case(metric, [tab, {"type": "url", "url": wanted}])
        tabs = [{"url": found}, {"url": "https://a.org"}]
        yield Case("is_expected_tabs", [tabs, {"type": "url", "urls": [wanted, "https://a.org/"]}])
        yield Case("is_expected_tabs", [tabs[:1], {"type": "url", "urls": [wanted, "https://a.org/"]}])
    cookies = [[1, ".example.com"], [2, "www.kayak.com"], [3, "news.bbc.co.uk"]]
    for domain in ("example.com", ".example.com", "kayak.com", "bbc.com", "bbc.co.uk", "news.bbc.com", "none.org", ""):
        yield Case("is_cookie_deleted", [cookies, {"type": "domains", "domains": [domain]}])
        yield Case("is_cookie_deleted", [[], {"type": "domains", "domains": [domain]}])
    answers: list[Any] = [
        *_ADDRESSES,
        {"url": "https://example.com/a"},
        {"url": ""},
        {"url": None},
        {"title": "x"},
        [],
        {},
    ]
    for answer in answers:
        for pattern in ("example", "^https://(www\\.)?example\\.com/?$", "", "q=1"):
            yield Case("is_expected_url_pattern_match", [answer, {"expected": [pattern]}])
            yield Case("is_expected_search_query", [answer, {"expect": {"pattern": pattern}}])
        yield Case("is_expected_url_pattern_match", [answer, {"expected": []}])
        yield Case("is_expected_url_pattern_match", [answer, {"expected": "ex"}])


def _browser() -> Iterator[Case]:
    zoom = ["Zoom Chrome Extension", "Zoom for Google Chrome"]
    for found in (None, [], ["A"], ["A", "B"], [*zoom], [zoom[0], "A"], [zoom[1], "A"], "AB"):
        for wanted in ([], ["A"], ["A", "B"], [zoom[0]], [zoom[1], "A"]):
            yield Case("is_expected_installed_extensions", [found, {"expected": wanted}])
    page = {"type": "url", "name": "p", "url": "https://a.org/"}
    for name, children in itertools.product(("Liked Authors", "Other", "liked authors"), ([], [page], [page, page])):
        bar = {"bookmark_bar": {"children": [{"type": "folder", "name": name, "children": children}, page]}}
        for rules in (
            {"type": "bookmark_bar_folders_names", "names": ["Liked Authors"]},
            {"type": "bookmark_bar_folders_names", "names": []},
            {"type": "bookmark_bar_websites_urls", "urls": ["https://a.org/"]},
            {"type": "bookmark_bar_websites_urls", "urls": ["https://a.org"]},
            {"type": "liked_authors_websites_urls", "names": ["Liked Authors"], "urls": [["https://a.org/", "x"]]},
            {"type": "liked_authors_websites_urls", "names": ["Other"], "urls": ["https://a.org/"]},
            {"type": "liked_authors_websites_urls", "names": ["Liked Authors"], "urls": []},
        ):
            yield Case("is_expected_bookmarks", [bar, rules])
            yield Case("is_expected_bookmarks", [{}, rules])
            yield Case("is_expected_bookmarks", [{"bookmark_bar": {}}, rules])
    shortcuts = ["Name=Gmail\nExec=chrome --app=x\n", "Name=gmail mail\nExec=chrome", "Name=\nExec=", "[Desktop]\n", ""]
    for content in shortcuts:
        for key, values in (
            ("name", ("Gmail", "GMAIL", "Maps", "G", "")),
            ("exec", ("chrome", "chrome --app=x y", "q")),
        ):
            for value in values:
                yield Case("is_shortcut_on_desktop", [{"a.desktop": content}, {"type": key, key: value}])
                yield Case("is_shortcut_on_desktop", [{}, {"type": key, key: value}])
    for history in ([], [["https://youtube.com/x", "t", 1]], [["https://a.org", "youtube", 1]], None):
        for keyword in ("youtube", "", "a.org"):
            yield Case("check_history_deleted", [history, {"type": "keywords", "keywords": [keyword]}])
    for size in ({"default_font_size": 16}, {"default_font_size": 20}, {}, None, {"default_font_size": None}):
        yield Case("check_font_size", [size, {"type": "value", "value": 20}])
        yield Case("check_font_size", [size, {"type": "range", "min": 16, "max": 30}])
    for content in ("The Dota 2 Official Soundtrack", "", "Dota"):
        yield Case("is_added_to_steam_cart", [{"content": content}, {"items": ["Dota 2"]}])
        yield Case("is_added_to_steam_cart", [{}, {"items": ["Dota 2"]}])


def _desktop() -> Iterator[Case]:
    for found in (
        "['a.desktop', 'b.desktop']",
        "['b.desktop', 'a.desktop']\n",
        "['a.desktop']",
        "[]",
        "@as []",
        "",
        "x",
    ):
        for wanted in (["a.desktop", "b.desktop"], ["a.desktop"], [], ["a.desktop", "a.desktop"]):
            yield Case("check_gnome_favorite_apps", [found, {"expected": wanted}])
    for zone in (
        "Time zone: Atlantic/Faroe (WET, +0000)",
        "Time zone: Asia/X (Y, +0100)",
        "Time zone: UTC (UTC, +0000) ",
    ):
        yield Case("is_utc_0", [f"a\nb\nc\n{zone}\nd"])
        yield Case("is_utc_0", [f"a\nb\n{zone}"])
        yield Case("is_utc_0", [f"a\nb\nc\n{zone}"])
    for names in ([], ["a.jpg"], ["a.jpg", "b.jpg"], ["b.jpg", "a.jpg"], ["a.jpg", "a.jpg"]):
        listing = {"children": [{"name": name, "type": "file"} for name in names]}
        for wanted in (["a.jpg", "b.jpg"], ["a.jpg"], []):
            yield Case("check_moved_jpgs", [listing, {"expected": wanted}])
            yield Case("check_moved_jpgs", [{}, {"expected": wanted}])
    sizes = [None, {"width": 1920, "height": 1080}, {"width": 1920, "height": 1052}, {"width": 1, "height": 1080}, {}]
    for one, other in itertools.product(sizes, sizes):
        yield Case("is_vlc_fullscreen", [one, other])
    for tree in (
        "<a><document-frame name='Slides View'/></a>",
        "<a><document-frame name='slides view'/></a>",
        "<document-frame name='Slides View'/>",
        "<a",
        "",
    ):
        yield Case("check_left_panel", [tree])


def _trees() -> Iterator[Case]:
    state = "xmlns:st='https://accessibility.ubuntu.example.org/ns/state'"
    trees = [
        f"<desktop-frame {state}><entry name='url' st:focused='true'>hello</entry><entry name='b'/></desktop-frame>",
        f"<desktop-frame {state}><entry name='url'>hallo</entry><entry name='url'>hello you</entry></desktop-frame>",
        f"<desktop-frame {state}><entry name='b'></entry></desktop-frame>",
        "<?xml version='1.0' encoding='utf-8'?><desktop-frame><entry name='url'>hello</entry></desktop-frame>",
        "<desktop-frame>",
        "",
    ]
    finders: list[dict[str, Any]] = [
        {"xpath": "//entry[@name='url']"},
        {"xpath": "//entry[@st:focused='true']"},
        {"selectors": ["entry[name=url]", "label"]},
        {"selectors": ["entry[st|focused=true]"]},
        {"xpath": "count(//entry)"},
        {"xpath": "//entry/@name"},
        {"xpath": "//entry[@nope:x='1']"},
        {},
    ]
    texts: list[dict[str, Any]] = [
        {},
        {"text": "hello", "exact": True},
        {"text": "hello", "exact": False},
        {"text": "", "exact": True},
        {"text": "hello"},
    ]
    for tree, finder, text in itertools.product(trees, finders, texts):
        yield Case("check_accessibility_tree", [tree, [{**finder, **text}]])
    for finder in finders[:4]:
        yield Case("check_accessibility_tree", [trees[0], [finder]], {"osname": "windows"})
        yield Case(
            "check_accessibility_tree", [trees[0], [finder, {"xpath": "//entry", "text": "helo", "exact": False}]]
        )
