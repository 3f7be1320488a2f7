"""Text files: plain text, JSON, YAML, CSV, settings of programs, mail, databases."""

from __future__ import annotations

import itertools
import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.osworld_parity.cases.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

_BYTES = [
    b"",
    b"one\ntwo\n",
    b"one\r\ntwo\r\n",
    b"One\n Two \n",
    b"one\n\n\ttwo",
    b"one two",
    b"\xef\xbb\xbfone\ntwo\n",
    b"caf\xe9\n",
    "café\n".encode(),
    b"one\x0ctwo\n",
    "one\u2028two\n".encode(),
    b"10:11:12 x\n99:99:99\n23:59:60\x0c10:00:00\n",
    b"3.14",
    b"the answer is 3.14",
    b"3.14001",
    b"#!/usr/bin/python\n# coding: utf-8\nx = 1\n\ty = 2  \n\n",
    b"x = 1\n    y = 2\n",
]


def cases(folder: Path) -> Iterator[Case]:
    files = []
    for number, data in enumerate(_BYTES):
        path = folder / f"{number}.txt"
        path.write_bytes(data)
        files.append(str(path))
    yield from _plain(files, str(folder))
    yield from _json(folder)
    yield from _csv(folder)
    yield from _programs(folder)
    yield from _office(folder)
    yield from _mail(folder)
    yield from _databases(folder)


def _plain(files: list[str], folder: str) -> Iterator[Case]:
    for one, other in itertools.product([*files, None, f"{folder}/none.txt", folder], files):
        for options in (
            {},
            {"ignore_blanks": True},
            {"ignore_case": True},
            {"ignore_blanks": True, "ignore_case": True},
        ):
            yield Case("compare_text_file", [one, other], options)
        for metric in ("diff_text_file", "compare_python_pure_text", "compare_result_files"):
            yield Case(metric, [one, other])
        for options in ({}, {"strict": False}, {"ignore_case": True}, {"strict": False, "ignore_case": True}):
            yield Case("compare_csv", [one, other], options)
        yield Case("compare_csv", [one, [other, files[1], f"{folder}/none.txt"]])
    for one in [*files, None, f"{folder}/none.txt", folder]:
        for text in ("one", "two", "", "One", "é"):
            yield Case("file_contains", [one, {"expected": [text]}])
            yield Case("check_list", [one, {"expect": [text], "unexpect": ["zzz"]}])
            yield Case("check_list", [one, {"expect": [f"^{text}$"]}])
            yield Case("check_list", [one, {"unexpect": [text]}])
        for count in (0, 1, 2, "2", "x"):
            yield Case("check_line_number", [one, {"expected": count}])


def _json(folder: Path) -> Iterator[Case]:
    texts = [
        b"{}",
        b'{"a": 1, "b": {"c": [1, 2], "d": "text"}}',
        b'{"a": "1", "b": null}',
        b"[1, 2]",
        b"3",
        b"",
        b"{'a': 1}",
        b"a: 1\nb:\n  c: [1, 2]\n  d: text\n",
        b"\xef\xbb\xbf{}",
        b'{"a": "caf\xe9"}',
        b"- a\n- b\n",
        b"a: [",
        b'// comment\n[{"key": "ctrl+j", "command": "x"}]',
        b'[{"key": "ctrl+j", "command": "x"}]',
    ]
    files = []
    for number, data in enumerate(texts):
        files.append(str(folder / f"{number}.json"))
        Path(files[-1]).write_bytes(data)
    rules = [
        {"key": ["a"], "method": "eq", "ref": 1},
        {"key": ["a"], "method": "re", "ref": "1"},
        {"key": ["b", "c"], "method": "eq", "ref": [1, 2]},
        {"key": ["b", "d"], "method": "re.I", "ref": "TEXT"},
        {"key": ["b", "c", 0], "method": "approx:0.5", "ref": 1.4},
        {"key": ["b", "c", 7], "method": "eq", "ref": 1},
        {"key": ["x", "y"], "method": "ne", "ref": 1},
        {"key": ["x"], "method": "re", "ref": "1"},
        {"key": [], "method": "eq", "ref": {}},
        {"key": ["a"], "method": "range.te", "ref": [0, 1]},
        {"key": ["b", "d"], "method": "str_list_eq", "ref": ["text"]},
        {"key": ["a"], "method": "gt", "ref": 0},
    ]
    for path, rule, yaml in itertools.product([*files, None, str(folder / "none.json")], rules, (False, True)):
        yield Case("check_json", [path, {"expect": [rule]}], {"is_yaml": yaml})
        yield Case("check_json", [path, {"unexpect": [rule]}], {"is_yaml": yaml})
    wanted: list[Any] = [{}, {"a": 1}, {"a": "1"}, {"b": {"c": [1, 2], "d": "text"}}, {"b": {"c": [1, 2]}}, {"x": 1}]
    for path, expected in itertools.product([*files, None, ""], wanted):
        yield Case("check_json_settings", [path, {"expected": expected}])
        for options in ({}, {"containment_ok": True}, {"containment_ok": False}):
            yield Case("compare_config", [path, {"expected": json.dumps(expected)}], options)
            yield Case("compare_config", [path, {"expected": "a: 1"}], options)
        yield Case("check_json_keybindings", [path, {"expected": {"key": "ctrl+j", "command": "x"}}])
        yield Case("check_json_keybindings", [path, {"expected": 1}])


def _csv(folder: Path) -> Iterator[Case]:
    texts = [
        b"a,b\n1,2\n",
        b'a,b\n"1\n1",2\n',
        b"a,b\r\n1,2,3\r\n",
        b"",
        b"a,b\n1\n",
        b"\xef\xbb\xbfa,b\n1,2\n",
        b"a,b\n\xe9,2",
    ]
    patterns = [{"a": "1"}, {"a": "1", "b": "2"}, {"a": "1\n1"}, {"b": None}, {}, {"c": "1"}]
    for number, data in enumerate(texts):
        path = folder / f"{number}.csv"
        path.write_bytes(data)
        for pattern in patterns:
            yield Case("check_csv", [str(path), {"expect": [pattern]}])
            yield Case("check_csv", [str(path), {"unexpect": [pattern]}])
            yield Case("check_csv", [None, {"expect": [pattern]}])


def _programs(folder: Path) -> Iterator[Case]:
    settings = [
        b"",
        b"qt-bgcone=0\nqt-max-volume=200\nqt-minimal-view=1\nplay-and-exit=1\nqt-slider-colours=1;2;3;4;5;6\n",
        b"#qt-bgcone=1\n#play-and-exit=0\n# qt-slider-colours are here\ninput-record-path=/home/user/Desktop\n",
        b"qt-bgcone=0\r\nqt-slider-colours=1;2;3;200\r\nglobal-key-play-pause=Space\n",
        b"#input-record-path=/x\n input-record-path = /home/user/Desktop \nglobal-key-play-pause=\n",
        b"qt-slider-colours=a;b\none-instance-when-started-from-file=0\nqt-max-volume=\xe9\n",
        b"qt-slider-colours=153;210;153;20;210;20;255;199;15;245;39;29\rqt-bgcone=0\n",
        b"one-instance-when-started-from-file=0\nplay-and-exit=0=1\n",
    ]
    checks = {
        "check_qt_bgcone": "expected_qt_bgcone",
        "check_qt_max_volume": "expected_qt_max_volume",
        "check_qt_minimal_view": "expected_qt_minimal_view",
        "check_play_and_exit": "expected_play_and_exit",
        "check_global_key_play_pause": "expected_global_key_play_pause",
        "check_one_instance_when_started_from_file": "expected_one_instance_when_started_from_file",
    }
    colours = ["1;2;3;4;5;6", "153;210;153;20;210;20;255;199;15;245;39;29"]
    for number, data in enumerate(settings):
        path = str(folder / f"vlcrc{number}")
        (folder / f"vlcrc{number}").write_bytes(data)
        for (metric, key), value in itertools.product(checks.items(), (0, 1, "0", "1", 200, True)):
            yield Case(metric, [path, {key: value}])
        yield Case("is_vlc_recordings_folder", [path, {"recording_file_path": "/home/user/Desktop"}])
        yield Case("is_vlc_recordings_folder", [path, {"recording_file_path": "/x"}])
        yield Case("check_qt_slider_colours", [path, {"type": "blackish"}])
        for colour in colours:
            yield Case("check_qt_slider_colours", [path, {"type": "match", "expected_qt_slider_colours": colour}])
    yield from _playing(folder)
    yield from _gimp(folder)


def _playing(folder: Path) -> Iterator[Case]:
    names = ["filename", "title", "uri", "location", "url", "URI", "name"]
    values = [
        "clip.mp4",
        "/home/user/clip.mp4",
        "https://a.org/live/x.m3u8",
        "x.m3u8",
        "https://a.org/live/x.m3u8/more",
        "",
    ]
    for number, (state, name, value) in enumerate(itertools.product(("playing", "paused", None), names, values)):
        meta = f"<information><category name='meta'><info name='{name}'>{value}</info></category></information>"
        path = folder / f"status{number}.xml"
        state_text = "" if state is None else f"<state>{state}</state>"
        path.write_text(f"<?xml version='1.0' encoding='utf-8'?><root>{state_text}{meta}</root>")
        yield Case("is_vlc_playing", [str(path), {"type": "file_name", "file_name": "clip.mp4"}])
        for address in ("https://a.org/live/x.m3u8", "https://a.org/live/", "https://b.org/x.m3u8"):
            yield Case("is_vlc_playing", [str(path), {"type": "url", "url": address}])


def _gimp(folder: Path) -> Iterator[Case]:
    texts = [
        '# comment\n\n(theme "Dark")\n(color-management\n    (mode none))\n',
        "(undo-levels 100)\n(hints (show no))\n",
        "  \n(undo-levels 100)\n",
        "(undo-levels 100)\n   \n",
        "()\n(undo-levels 100)\n",
        "",
        "(hints)\n(undo-levels 100)",
    ]
    rules: list[dict[str, Any]] = [
        {"key": "theme", "value": '"Dark"'},
        {"key": "undo-levels", "value": "100"},
        {"key": ["hints", "(show"], "value": "no"},
        {"key": ["hints", "x"], "value": "no"},
        {"key": ["undo-levels"], "value": "100"},
        {"key": "(mode", "value": "none"},
    ]
    for number, text in enumerate(texts):
        path = folder / f"gimprc{number}"
        path.write_text(text)
        for rule in rules:
            yield Case("check_config_status", [str(path), rule])
    yield Case("check_config_status", [None, rules[0]])


def _office(folder: Path) -> Iterator[Case]:
    def item(path: str, name: str, *values: str) -> str:
        inner = "".join(f"<value>{value}</value>" for value in values)
        return f'<item oor:path="{path}"><prop oor:name="{name}" oor:op="fuse">{inner}</prop></item>'

    presenter = ("/org.openoffice.Office.Impress/Misc/Start", "EnablePresenterScreen")
    saving = ("/org.openoffice.Office.Common/Save/Document", "AutoSaveTimeIntervall")
    font = ("/org.openoffice.Office.Writer/DefaultFont", "Standard")
    bodies = [
        "",
        item(*presenter, "false") + item(*saving, "3") + item(*font, "Times New Roman"),
        item(*presenter, "true") + item(*presenter, "false") + item(*saving, "3") + item(*saving, "5"),
        item(*presenter, "false") + item(*presenter, "true") + item(*font, "A") + item(*font, "Times New Roman"),
        item(*presenter) + item(*saving) + item(*font),
        item(*presenter, "") + item(*saving, "x") + item(*font, ""),
        item(*font, "A", "Times New Roman") + item(*saving, "5", "3") + item(*presenter, "true", "false"),
        f"<group>{item(*presenter, 'False')}</group>",
    ]
    for number, body in enumerate(bodies):
        path = folder / f"registry{number}.xcu"
        path.write_text(f'<oor:items xmlns:oor="http://openoffice.org/2001/registry">{body}</oor:items>')
        yield Case("check_presenter_console_disable", [str(path)])
        for minutes in (3, 5, "3"):
            yield Case("check_auto_saving_time", [str(path), {"minutes": minutes}])
        for name in ("Times New Roman", "A"):
            yield Case("find_default_font", [str(path), {"font_name": name}])
    for metric in ("check_presenter_console_disable",):
        yield Case(metric, [str(folder / "0.txt")])
    yield Case("find_default_font", [str(folder / "0.txt"), {"font_name": "A"}])
    yield Case("check_auto_saving_time", [str(folder / "0.txt"), {"minutes": 3}])


def _mail(folder: Path) -> Iterator[Case]:
    preferences = [
        'user_pref("a", true);\nuser_pref("b", "x\\"y");\nuser_pref("c", 3);\n',
        'user_pref("a",true);\nuser_pref("c", 3);\n',
        'user_pref("a", true);\nuser_pref("z", not json);\n',
        '// comment\n user_pref("a", false); \r\nuser_pref("a", true);\n',
        "",
    ]
    rules = [{"method": "eq", "ref": True}, {"method": "re", "ref": "x"}, {"method": "ge", "ref": 3}]
    for number, text in enumerate(preferences):
        path = folder / f"prefs{number}.js"
        path.write_text(text)
        for key, rule in itertools.product(("a", "b", "c", "q"), rules):
            for side in ("expect", "unexpect"):
                yield Case("check_thunderbird_prefs", [str(path), {side: {key: rule}}])
    filters = [
        'version="9"\nname="A"\nenabled="yes"\ntype="17"\naction="Mark read"\ncondition="AND (subject,contains,x)"\n',
        'name="A"\nenabled="yes"\ncondition="OR (subject,contains,\\"a b\\") OR (from,is,\\"c\\")"\n',
        'name="A"\nenabled="yes"\ncondition="ALL"',
        'name="A"\nenabled="yes"\ncondition="AND (from,is,x)"',
        'enabled="yes"\nname="A"\ncondition="ALL"\n',
        'name="A"\nactionValue="mailbox://x/y"\ncondition="AND (from,isn\'t,x) AND (age in days,is greater than,3)"\n',
        "",
    ]
    patterns: list[dict[str, Any]] = [
        {"name": "A", "enabled": "yes"},
        {"condition": ["AND (subject,contains,x)"]},
        {"condition": ['OR (subject,contains,"a b")', 'OR (from,is,"c")']},
        {"condition": ['OR (subject,contains,"a b") OR (from,is,"c")']},
        {"condition": ["ALL"]},
        {"condition": []},
        {"condition": ["AND (from,isn't,x)", "AND (age in days,is greater than,3)"]},
        {"actionValue": "mailbox://x/y"},
    ]
    for number, text in enumerate(filters):
        path = folder / f"filters{number}.dat"
        path.write_text(text)
        for pattern, side in itertools.product(patterns, ("expect", "unexpect")):
            yield Case("check_thunderbird_filter", [str(path), {side: [pattern]}])
    mails = ["", "FROM - x\nbody\n", "FROM - x\nFROM - y\n", "From - x\nbody\n", "FROM - FROM - x", "\n\n", "text"]
    paths = []
    for number, text in enumerate(mails):
        path = folder / f"mail{number}"
        path.write_text(text)
        paths.append(str(path))
    for one, other in itertools.product([*paths, None], paths):
        for options in (
            {},
            {"remove_duplicate": False},
            {"remove_deleted": False, "ignore_status": True, "ignore_keys": True},
        ):
            yield Case("check_thunderbird_folder", [one, other], options)
            yield Case("check_thunderbird_folder", [[one, paths[1]], [other, paths[2]]], options)
        yield Case("check_thunderbird_folder", [one, [other]])


def _databases(folder: Path) -> Iterator[Case]:
    for mode in ("delete", "wal"):
        path = folder / f"{mode}.sqlite"
        connection = sqlite3.connect(path)
        connection.execute(f"pragma journal_mode={mode}")
        connection.execute("create table t (x)")
        connection.execute("insert into t values (1), (0)")
        connection.commit()
        connection.close()
        for query in (
            "select count(*)=2 from t",
            "select x from t where x=5",
            "select null",
            "select x from nope",
            "select 0.5",
        ):
            yield Case("run_sqlite3", [str(path), {"sql": query}])
            yield Case("run_sqlite3", [str(folder / "0.txt"), {"sql": query}])
