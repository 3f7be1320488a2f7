"""Metrics of the core: values, text files, JSON, CSV, SQLite, and what applications keep as text."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paragent.osworld.evaluators.getters.browser import rows
from paragent.osworld.evaluators.metrics.matching import matches

Score = Callable[..., float]
Write = Callable[..., str]

RULE = {"expected": "yes"}
VALUES: list[tuple[str, Any, Any, dict[str, Any], float]] = [
    ("exact_match", "yes", RULE, {}, 1),
    ("exact_match", "yes\n", RULE, {}, 0),
    ("exact_match", ["a", 1], {"expected": ["a", 1]}, {}, 1),
    ("match_in_list", "b", {"expected": ["a", "b"]}, {}, 1),
    ("match_in_list", "c", {"expected": ["a", "b"]}, {}, 0),
    ("is_in_list", ["/x", "/y"], {"expected": "/y"}, {}, 1),
    ("is_in_list", ["/x"], {"expected": "/y"}, {}, 0),
    ("fuzzy_match", "abcd", {"expected": "abcx"}, {}, 0.75),
    ("literal_match", 5, "5", {}, 1),
    ("literal_match", "Yes", "yes", {"ignore_case": True}, 1),
    ("literal_match", ["A", 2], ["a", "2"], {"type": "list", "ignore_case": True}, 1),
    ("literal_match", ["a"], ["a", "b"], {"type": "list"}, 0),
    ("literal_match", "a", ["a"], {"type": "list"}, 0),
    ("check_include_exclude", "one two", {"include": ["one"], "exclude": ["three"]}, {}, 1),
    ("check_include_exclude", "one two", {"include": ["one"], "exclude": ["two"]}, {}, 0),
    ("check_include_exclude", "one", {"include": ["one", "two"]}, {}, 0),
    ("check_include_exclude", None, {"exclude": ["x"]}, {}, 0),
    ("is_extension_installed", "a\nb\n", {"type": "contain", "expected": "b"}, {}, 1),
    ("is_extension_installed", "a\nb\n", {"type": "not_contain", "expected": "b"}, {}, 0),
    ("is_in_vm_clickboard", {"expected": "/x"}, "file:///x", {}, 1),
    ("is_in_vm_clickboard", {"expected": ["/x", "/y"]}, "/x", {}, 0),
    ("check_direct_json_object", {"a": 1, "b": 2}, {"expected": {"a": 1}}, {}, 1),
    ("check_direct_json_object", {"a": 2}, {"expected": {"a": 1}}, {}, 0),
    ("check_direct_json_object", " {'a': 1} ", {"expected": {"a": 1}}, {}, 1),
    ("check_direct_json_object", None, {"expected": {"a": 1}}, {}, 0),
    ("check_direct_json_object", {"a": "x"}, {"expected": {"a": "__EVALUATION_FAILED__"}}, {}, 0),
    (
        "check_direct_json_object",
        {"q": "drip coffee maker 2"},
        {"expect_in_result": True, "expected": {"q": "coffee"}},
        {},
        1,
    ),
    ("check_direct_json_object", {"q": "tea"}, {"expect_in_result": True, "expected": {"q": "coffee"}}, {}, 0),
    ("check_direct_json_object", {"to": "ARN"}, {"expect_in_result": True, "expected": {"to": ["STO", "ARN"]}}, {}, 1),
    ("check_direct_json_object", {"to": ["OSL"]}, {"expect_in_result": True, "expected": {"to": ["STO"]}}, {}, 0),
    ("check_gnome_favorite_apps", "['a.desktop', 'b.desktop']\n", {"expected": ["b.desktop", "a.desktop"]}, {}, 1),
    ("check_gnome_favorite_apps", "['a.desktop']", {"expected": ["b.desktop"]}, {}, 0),
    ("is_utc_0", "a\nb\nc\n   Time zone: Atlantic/Faroe (WET, +0000)\nd", None, {}, 1),
    ("is_utc_0", "a\nb\nc\n   Time zone: Europe/Zurich (CET, +0100)\nd", None, {}, 0),
    ("check_moved_jpgs", {"children": [{"name": "b"}, {"name": "a"}]}, {"expected": ["a", "b"]}, {}, 1),
    ("check_moved_jpgs", {"children": [{"name": "b"}]}, {"expected": ["a", "b"]}, {}, 0),
    ("is_vlc_fullscreen", {"width": 9, "height": 8}, {"width": 9, "height": 8}, {}, 1),
    ("is_vlc_fullscreen", {"width": 9, "height": 8}, {"width": 9, "height": 7}, {}, 0),
    ("check_left_panel", "<d><document-frame name='Slides View'/></d>", None, {}, 1),
    ("check_left_panel", "<d><document-frame name='Other'/></d>", None, {}, 0),
    ("check_font_size", {"default_font_size": 20}, {"type": "value", "value": 20}, {}, 1),
    ("check_font_size", {"default_font_size": 16}, {"type": "range", "min": 16, "max": 99}, {}, 0),
    ("is_added_to_steam_cart", {"content": "<p>Dota</p>"}, {"items": ["Dota"]}, {}, 1),
    ("is_expected_installed_extensions", ["a", "b"], {"expected": ["b"]}, {}, 1),
    ("is_expected_installed_extensions", [], {"expected": []}, {}, 0),
    ("is_expected_url_pattern_match", "https://x.org/a?b", {"expected": ["x.org", r"\?b$"]}, {}, 1),
    ("is_expected_url_pattern_match", {"url": "https://x.org/a"}, {"expected": ["y.org"]}, {}, 0),
    ("is_expected_url_pattern_match", None, {"expected": []}, {}, 0),
    ("is_expected_search_query", {"url": "https://x.org/?q=cat"}, {"expect": {"pattern": "q=cat"}}, {}, 1),
    (
        "is_expected_active_tab_approximate",
        {"url": "https://x.org/a?z=1"},
        {"type": "url", "url": "https://x.org/a"},
        {},
        1,
    ),
    ("is_expected_active_tab_approximate", "https://x.org/b", {"type": "url", "url": "https://x.org/a"}, {}, 0),
    ("check_history_deleted", [["https://a.org", "", 0]], {"type": "keywords", "keywords": ["youtube"]}, {}, 1),
    ("check_history_deleted", [["https://youtube.com", "", 0]], {"type": "keywords", "keywords": ["youtube"]}, {}, 0),
    ("is_shortcut_on_desktop", {"x.desktop": "Name=Mail\nExec=m\n"}, {"type": "name", "name": "Mail"}, {}, 1),
    ("is_shortcut_on_desktop", {"x.desktop": "Name=Mailer\n"}, {"type": "name", "name": "mail"}, {}, 1),
    ("is_shortcut_on_desktop", {"x.desktop": "Name=Maps\n"}, {"type": "name", "name": "Mail"}, {}, 0),
    ("is_shortcut_on_desktop", {"x.desktop": "Exec=M\n"}, {"type": "exec", "exec": "m --x"}, {}, 0),
    ("is_expected_installed_extensions", ["Zoom for Google Chrome"], {"expected": ["Zoom Chrome Extension"]}, {}, 1),
    ("is_expected_url_pattern_match", {"url": ""}, {"expected": ["^$"]}, {}, 1),
    ("is_expected_active_tab", {"url": ""}, {"type": "url", "url": ""}, {}, 1),
    ("check_direct_json_object", {"a": 3}, {"expected": {"a": [3]}, "expect_in_result": True}, {}, 0),
    ("check_direct_json_object", {"a": ["x"]}, {"expected": {"a": "x"}, "expect_in_result": True}, {}, 1),
    ("check_direct_json_object", [], {"expected": {}}, {}, 1),
    ("is_shortcut_on_desktop", {"x.desktop": "Exec=m --x\n"}, {"type": "exec", "exec": "m --x"}, {}, 1),
]


@pytest.mark.parametrize(("name", "result", "expected", "options", "wanted"), VALUES)
def test_values(score: Score, name: str, result: Any, expected: Any, options: dict[str, Any], wanted: float) -> None:
    assert score(name, result, expected, **options) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("value", "method", "ref", "wanted"),
    [
        (3, "eq", 3, True),
        (3, "lt", 3, False),
        ("Anonym\nXYZ Lab", "re.S", "Anonym.XYZ", True),
        ("Anonym\nXYZ Lab", "re", "Anonym.XYZ", False),
        ("1.05", "approx:0.1", 1.0, True),
        (None, "approx:0.1", 1.0, False),
        (2, "range.te", [0, 2], True),
        (0, "range.te", [0, 2], False),
        ('"a,b"', "str_list_eq", ["a", "b"], True),
        ('"b,a"', "str_list_eq", ["a", "b"], False),
        ('"b,a"', "str_set_eq", ["a", "b"], True),
        ("abc", "regex", "b", True),
        ("ABC", "regex.I", "b", True),
    ],
)
def test_rules_about_values(value: Any, method: str, ref: Any, wanted: bool) -> None:
    assert matches(value, {"method": method, "ref": ref}) is wanted


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="likens"):
        matches(1, {"method": "likens", "ref": 1})


FILES: list[tuple[str, str, Any, dict[str, Any], float]] = [
    ("check_list", "alpha\nbeta\n", {"expect": ["^al", "a$"], "unexpect": ["gamma"]}, {}, 1),
    ("check_list", "alpha\n", {"unexpect": [".+"]}, {}, 0),
    ("check_list", "", {"unexpect": [".+"]}, {}, 1),
    ("file_contains", "CPU %user %nice", {"expected": ["CPU", "%nice"]}, {}, 1),
    ("file_contains", "CPU", {"expected": ["CPU", "%nice"]}, {}, 0),
    ("check_line_number", "12:00:01 a\n12:00:02 b\nno time\n25:00:00 c\n", {"expected": "2"}, {}, 1),
    ("check_line_number", "12:00:01 a\n", {"expected": "2"}, {}, 0),
    ("check_json_settings", '{"a": 1, "b": [2]}', {"expected": {"b": [2]}}, {}, 1),
    ("check_json_settings", '{"a": 1}', {"expected": {"a": 2}}, {}, 0),
    ("check_json_keybindings", '// mine\n[{"key": "x"}]', {"expected": {"key": "x"}}, {}, 1),
    ("check_json_keybindings", '[{"key": "y"}]', {"expected": {"key": "x"}}, {}, 0),
    ("check_json_keybindings", "nothing", {"expected": {"key": "x"}}, {}, 0),
    ("compare_config", '{"theme": "dark", "x": {"y": 1, "z": 2}}', {"expected": '{"x": {"y": 1}}'}, {}, 1),
    ("compare_config", '{"theme": "dark"}', {"expected": '{"theme": "light"}'}, {}, 0),
    ("compare_config", '{"theme": "dark", "a": 1}', {"expected": '{"theme": "dark"}'}, {"containment_ok": False}, 0),
    ("compare_config", "/home/user/project\n", {"expected": "project"}, {}, 1),
    ("check_csv", "url,user\nimap://x,me\n", {"expect": [{"url": "imap://x"}]}, {}, 1),
    ("check_csv", "url,user\nimap://x,me\n", {"unexpect": [{"url": "imap://x", "user": "me"}]}, {}, 0),
    (
        "check_json",
        '{"a": {"b": "smart folders"}}',
        {"expect": [{"key": ["a", "b"], "method": "re", "ref": "smart"}]},
        {},
        1,
    ),
    ("check_json", '{"a": 1}', {"unexpect": [{"key": ["b"], "method": "eq", "ref": 1}]}, {}, 1),
    (
        "check_json",
        "name: Test\n",
        {"expect": [{"key": ["name"], "method": "eq", "ref": "Test"}]},
        {"is_yaml": True},
        1,
    ),
    ("check_config_status", '# x\n(undo-levels 100)\n(theme "Light")\n', {"key": "theme", "value": '"Light"'}, {}, 1),
    ("check_config_status", "(undo-levels 5)\n", {"key": "undo-levels", "value": "100"}, {}, 0),
    ("check_config_status", "(a b 5)\n", {"key": ["a", "b"], "value": "5"}, {}, 1),
    ("check_qt_bgcone", "#qt-bgcone=1\nqt-bgcone=0\n", {"expected_qt_bgcone": 0}, {}, 1),
    ("check_qt_bgcone", "", {"expected_qt_bgcone": 0}, {}, 0),
    ("check_qt_max_volume", "qt-max-volume=200\n", {"expected_qt_max_volume": 200}, {}, 1),
    ("check_qt_minimal_view", "", {"expected_qt_minimal_view": 0}, {}, 1),
    ("check_play_and_exit", "play-and-exit=1", {"expected_play_and_exit": 1}, {}, 1),
    (
        "check_one_instance_when_started_from_file",
        "one-instance-when-started-from-file=0",
        {"expected_one_instance_when_started_from_file": 0},
        {},
        1,
    ),
    ("check_global_key_play_pause", "global-key-play-pause=Space", {"expected_global_key_play_pause": 1}, {}, 1),
    ("check_global_key_play_pause", "#global-key-play-pause=", {"expected_global_key_play_pause": 1}, {}, 0),
    ("is_vlc_recordings_folder", "#input-record-path=\ninput-record-path=/d\n", {"recording_file_path": "/d"}, {}, 1),
    ("is_vlc_recordings_folder", "#input-record-path=/d\n", {"recording_file_path": "/d"}, {}, 0),
    ("check_qt_slider_colours", "qt-slider-colours=1;2;3;99;0;0", {"type": "blackish"}, {}, 1),
    ("check_qt_slider_colours", "", {"type": "blackish"}, {}, 0),
]


@pytest.mark.parametrize(("name", "text", "expected", "options", "wanted"), FILES)
def test_files_against_rules(
    score: Score, write: Write, name: str, text: str, expected: Any, options: dict[str, Any], wanted: float
) -> None:
    assert score(name, write("file", text), expected, **options) == wanted


@pytest.mark.parametrize(
    "name", sorted({name for name, *_ in FILES if name.startswith(("check_j", "check_l", "file_"))})
)
def test_a_missing_file_does_not_pass(score: Score, name: str) -> None:
    assert score(name, None, {"expected": {}, "expect": []}) == 0


PAIRS: list[tuple[str, str, str, dict[str, Any], float]] = [
    ("compare_text_file", "a\nb\n", "a\nb\n", {}, 1),
    ("compare_text_file", "a\r\nb\n", "a\nb\n", {}, 1),
    ("compare_text_file", " a\t b\n", "a b", {}, 0),
    ("compare_text_file", " a\t b\n", "a b", {"ignore_blanks": True}, 1),
    ("compare_text_file", "A", "a", {"ignore_case": True}, 1),
    ("diff_text_file", "a\nb\nc\nd\n", "a\nb\nc\nx\n", {}, 0.75),
    ("compare_csv", "a,b\n1,2\n", "a,b\n1,2", {}, 1),
    ("compare_csv", "a,b \n", "a,b\n", {}, 0),
    ("compare_csv", "A,b \n", "a,b\n", {"strict": False, "ignore_case": True}, 1),
    ("compare_python_pure_text", "#!/usr/bin/python\n\nx = 1  \n\ty = 2\n", "x = 1\n    y = 2\n", {}, 1),
    ("compare_python_pure_text", "```\nx = 1\n", "x = 1\n", {}, 0),
    ("compare_result_files", "It is 42 in all.\n", "42", {}, 1),
    ("compare_result_files", "41.99999", "42.0", {}, 1),
    ("compare_result_files", "forty", "42", {}, 0),
    ("compare_result_files", "forty", "forty\n", {}, 1),
]


@pytest.mark.parametrize(("name", "found", "wanted", "options", "score_wanted"), PAIRS)
def test_files_against_files(
    score: Score, write: Write, name: str, found: str, wanted: str, options: dict[str, Any], score_wanted: float
) -> None:
    assert score(name, write("found", found), write("wanted", wanted), **options) == pytest.approx(score_wanted)


def test_one_of_several_expected_csv_files_is_enough(score: Score, write: Write) -> None:
    paths = [write("one", "x\n"), write("other", "y\n")]
    assert score("compare_csv", write("found", "y\n"), paths) == 1
    assert score("compare_csv", write("found", "z\n"), paths) == 0


def test_sqlite_files_are_read_and_not_changed(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE m (id INTEGER)")
        connection.execute("INSERT INTO m VALUES (1)")
    connection.close()
    assert score("run_sqlite3", str(path), {"sql": "SELECT COUNT(*) = 1 FROM m"}) == 1
    assert score("run_sqlite3", str(path), {"sql": "SELECT NULL"}) == 0
    (tmp_path / "other").write_bytes(path.read_bytes())
    for refused in (
        "DELETE FROM m",
        f"VACUUM INTO '{tmp_path / 'copy'}'",
        f"ATTACH '{tmp_path / 'other'}' AS other",
        "PRAGMA user_version = 3",
        "SELECT load_extension('/lib/x.so')",
    ):
        with pytest.raises(
            sqlite3.DatabaseError, match=r"not authorized|authorization denied|prohibited|too many attached"
        ):
            score("run_sqlite3", str(path), {"sql": refused})
        with pytest.raises(
            sqlite3.DatabaseError, match=r"not authorized|authorization denied|prohibited|too many attached"
        ):
            rows(str(path), refused)
    assert not (tmp_path / "copy").exists()
    recursive = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5) SELECT MAX(x) FROM n"
    assert score("run_sqlite3", str(path), {"sql": recursive}) == 5


REGISTRY = """<?xml version="1.0"?><oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Impress/Misc/Start"><prop oor:name="EnablePresenterScreen"><value>{}</value></prop></item>
<item oor:path="/org.openoffice.Office.Common/Save/Document">
<prop oor:name="AutoSaveTimeIntervall"><value>{}</value></prop></item>
<item oor:path="/org.openoffice.Office.Writer/DefaultFont"><prop oor:name="Standard"><value>{}</value></prop></item>
</oor:items>"""


def test_the_registry_of_libreoffice(score: Score, write: Write) -> None:
    path = write("registry.xcu", REGISTRY.format("false", "3", "Times New Roman"))
    assert score("check_presenter_console_disable", path) == 1
    assert score("check_auto_saving_time", path, {"minutes": 3}) == 1
    assert score("check_auto_saving_time", path, {"minutes": 4}) == 0
    assert score("find_default_font", path, {"font_name": "Times New Roman"}) == 1
    assert score("find_default_font", path, {"font_name": "Arial"}) == 0
    assert score("check_presenter_console_disable", write("other.xcu", REGISTRY.format("true", "3", "x"))) == 0


STATUS = """<root><state>{}</state><information><category name="meta">
<info name="filename">{}</info></category></information></root>"""


@pytest.mark.parametrize(
    ("state", "shown", "rules", "wanted"),
    [
        ("playing", "Rick.mp4", {"type": "file_name", "file_name": "Rick.mp4"}, 1),
        ("playing", "/home/user/Rick.mp4", {"type": "file_name", "file_name": "Rick.mp4"}, 1),
        ("paused", "Rick.mp4", {"type": "file_name", "file_name": "Rick.mp4"}, 0),
        ("playing", "Other.mp4", {"type": "file_name", "file_name": "Rick.mp4"}, 0),
        ("playing", "live.m3u8", {"type": "url", "url": "https://x.org/a/live.m3u8"}, 1),
        ("playing", "https://x.org/a/live.m3u8?t=1", {"type": "url", "url": "https://x.org/a/live.m3u8"}, 1),
        ("playing", "https://y.org/a", {"type": "url", "url": "https://x.org/a/live.m3u8"}, 0),
    ],
)
def test_what_vlc_plays(score: Score, write: Write, state: str, shown: str, rules: Any, wanted: float) -> None:
    assert score("is_vlc_playing", write("status.xml", STATUS.format(state, shown)), rules) == wanted


PREFS = 'user_pref("a.b", false);\nuser_pref("theme", "firefox-dark@x");\n// comment\nuser_pref("n", 3);\n'


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ({"expect": {"a.b": {"method": "eq", "ref": False}, "theme": {"method": "re", "ref": "dark"}}}, 1),
        ({"expect": {"a.b": {"method": "eq", "ref": True}}}, 0),
        ({"expect": {"nowhere": {"method": "eq", "ref": True}}}, 0),
        ({"unexpect": {"n": {"method": "eq", "ref": 3}}}, 0),
        ({"unexpect": {"n": {"method": "eq", "ref": 4}}}, 1),
    ],
)
def test_preferences_of_thunderbird(score: Score, write: Write, rules: Any, wanted: float) -> None:
    assert score("check_thunderbird_prefs", write("prefs.js", PREFS), rules) == wanted


FILTER = """version="9"
logging="no"
name="Promo"
enabled="yes"
type="17"
action="Move to folder"
actionValue="mailbox://nobody@Local%20Folders/Promotions"
condition="AND (subject,contains,discount) AND (from,is,\\"me, you\\")"
"""


def test_filters_of_thunderbird(score: Score, write: Write) -> None:
    path = write("rules.dat", FILTER)
    conditions = ["AND (subject,contains,discount)", 'AND (from,is,"me, you")']
    right = {"enabled": "yes", "action": "Move to folder", "condition": conditions}
    assert score("check_thunderbird_filter", path, {"expect": [right]}) == 1
    assert score("check_thunderbird_filter", path, {"expect": [right | {"enabled": "no"}]}) == 0
    assert score("check_thunderbird_filter", path, {"unexpect": [right]}) == 0


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("check_json", {"unexpect": [{"key": ["a"], "method": "eq", "ref": 1}]}),
        ("check_json_settings", {"expected": {}}),
        ("check_list", {"unexpect": ["x"]}),
        ("check_csv", {"unexpect": [{"a": "1"}]}),
        ("check_thunderbird_prefs", {"unexpect": {"a": {"method": "eq", "ref": 1}}}),
        ("check_config_status", {"key": "a", "value": "b"}),
    ],
)
def test_a_file_that_is_not_utf_8_is_an_error(score: Score, write: Write, metric: str, expected: Any) -> None:
    with pytest.raises(UnicodeDecodeError):
        score(metric, write("latin", b'{"b": "caf\xe9"}'), expected)


def test_csv_files_with_another_encoding_are_compared(score: Score, write: Write) -> None:
    latin = write("l.csv", b"caf\xe9,1\n")
    assert score("compare_csv", latin, write("m.csv", b"caf\xe9,1\n")) == 1
    assert score("compare_csv", latin, write("n.csv", "café,1\n")) == 1
    assert score("compare_csv", write("b.csv", b"\xef\xbb\xbfa,1\n"), write("c.csv", "a,1\n")) == 0


def test_any_preference_that_is_not_json_is_an_error(score: Score, write: Write) -> None:
    path = write("prefs.js", 'user_pref("a", true);\nuser_pref("z", not json);\n')
    with pytest.raises(ValueError, match="Expecting value"):
        score("check_thunderbird_prefs", path, {"expect": {"a": {"method": "eq", "ref": True}}})


def test_a_quoted_condition_of_a_filter_extends_to_the_last_quote(score: Score, write: Write) -> None:
    line = 'condition="OR (subject,contains,\\"a b\\") OR (from,is,\\"c\\")"\n'
    path = write("rules.dat", 'name="A"\n' + line)
    whole = {"condition": ['OR (subject,contains,"a b") OR (from,is,"c")']}
    assert score("check_thunderbird_filter", path, {"expect": [whole]}) == 1
    with pytest.raises(ValueError, match="begins with"):
        score("check_thunderbird_filter", write("x.dat", line), {"expect": []})


def test_a_blank_line_in_the_settings_of_gimp_is_an_error(score: Score, write: Write) -> None:
    with pytest.raises(IndexError):
        score("check_config_status", write("gimprc", "  \n(a b)\n"), {"key": "a", "value": "b"})


def test_folders_of_thunderbird_as_osworld_scores_them(score: Score, write: Write) -> None:
    gold = write("gold", "FROM - Mon\nSubject: a\n")
    assert score("check_thunderbird_folder", write("other", "FROM - Wed\nSubject: b\n"), gold) == 1
    assert score("check_thunderbird_folder", write("none", "no mail"), gold) == 0
    assert (
        score("check_thunderbird_folder", write("other", "FROM - Wed\nSubject: b\n"), gold, strict_evaluators=True) == 0
    )


def test_folders_of_thunderbird(score: Score, write: Write) -> None:
    def scored(found: Any, gold: Any, **options: Any) -> float:
        return score("check_thunderbird_folder", found, gold, strict_evaluators=True, **options)

    one = "FROM - Mon\nX-Mozilla-Status: 0001\nSubject: a\n\nhello\n"
    gone = "FROM - Tue\nX-Mozilla-Status: 0009\nSubject: b\n\nbye\n"
    other = "FROM - Wed\nX-Mozilla-Status: 0000\nSubject: c\n\nagain\n"
    expected = write("gold", other + one)
    assert scored(write("found", one + gone + other + one), expected) == 1
    assert scored(write("found", one), expected) == 0
    found = write("found", one + gone + other)
    assert scored(found, expected, remove_deleted=False) == 0
    read = write("read", one.replace("0001", "0000") + other)
    assert scored(read, expected) == 0
    assert scored(read, expected, ignore_status=True) == 1
    assert scored([found, None], [expected, expected]) == 0


BAR: dict[str, Any] = {
    "bookmark_bar": {
        "children": [
            {"type": "folder", "name": "Favorites", "children": []},
            {"type": "url", "name": "J", "url": "https://jalopnik.com/"},
            {
                "type": "folder",
                "name": "Liked Authors",
                "children": [{"type": "url", "url": "https://a.org/"}, {"type": "url", "url": "https://b.org/"}],
            },
        ]
    }
}


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ({"type": "bookmark_bar_folders_names", "names": ["Favorites", "Liked Authors"]}, 1),
        ({"type": "bookmark_bar_folders_names", "names": ["Favorites"]}, 0),
        ({"type": "bookmark_bar_websites_urls", "urls": ["https://jalopnik.com/"]}, 1),
        ({"type": "liked_authors_websites_urls", "urls": ["https://a.org/", ["https://x.org/", "https://b.org/"]]}, 1),
        ({"type": "liked_authors_websites_urls", "urls": ["https://a.org/"]}, 0),
    ],
)
def test_bookmarks(score: Score, rules: Any, wanted: float) -> None:
    assert score("is_expected_bookmarks", json.loads(json.dumps(BAR)), rules) == wanted
    assert score("is_expected_bookmarks", {}, rules) == 0
