"""Getters on a real machine: a desktop of this host."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from paragent.errors import EnvironmentFailed, InfrastructureError
from paragent.machines import Machine, MachineSettings, VMPoolManager
from paragent.osworld import access as access_module
from paragent.osworld.access import Access
from paragent.osworld.context import AttemptContext, GetterContext, MachineRefused
from paragent.osworld.controller import CommandReply, Controller
from paragent.osworld.evaluators import GETTERS, evaluate
from paragent.osworld.evaluators.evaluator import evaluation_processes
from paragent.osworld.evaluators.getters import applications, browser
from paragent.osworld.evaluators.getters.browser import address_bar, filters_of
from paragent.osworld.evaluators.getters.rules import day_of, fill_in
from paragent.osworld.setup import set_up

Get = Callable[..., Any]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    settings = MachineSettings(screen=(1024, 768), options={"desktop": True, "applications": "terminal"})
    with VMPoolManager("process", 1, spares=0, name="getters", settings=settings) as pool, pool.lease() as leased:
        yield leased


@pytest.fixture
def attempt(machine: Machine, tmp_path: Path) -> AttemptContext:
    return AttemptContext(Controller(machine), tmp_path, run_steps=set_up, access=Access(allow_private=True))


@pytest.fixture
def home(machine: Machine) -> Path:
    """The home folder of the machine's user, on this host, without a browser's profile of another test."""
    folder = Path(machine.execute('printf %s "$HOME"').output)
    shutil.rmtree(folder / ".config/google-chrome", ignore_errors=True)
    return folder


@pytest.fixture
def get(attempt: AttemptContext) -> Get:
    """Call a getter as `evaluate` does."""

    def call(kind: str, **config: Any) -> Any:
        async def asking() -> Any:
            async with evaluation_processes() as helpers:
                return await GETTERS.load(kind)(
                    GetterContext(attempt, attempt.folder, helpers), {"type": kind, **config}
                )

        return asyncio.run(asyncio.wait_for(asking(), 100))

    return call


def put(home: Path, path: str, data: str | bytes) -> str:
    target = home / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(target)


def test_files_of_the_machine(get: Get, home: Path, tmp_path: Path) -> None:
    path = put(home, "a.txt", "hello")
    assert get("vm_file", path=path, dest="copy.txt") == str(tmp_path / "copy.txt")
    assert (tmp_path / "copy.txt").read_text() == "hello"
    assert get("vm_file", path=f"{path}.gone", dest="copy.txt") is None
    assert not (tmp_path / "copy.txt").exists()  # the copy of an earlier check would be taken for this one
    several = {"path": [path, f"{path}.gone", path], "dest": ["x", "y", "z"], "multi": True}
    assert get("vm_file", **several) == str(tmp_path / "x")
    assert get("vm_file", **several, gives=[0, 1, 2]) == [str(tmp_path / "x"), None, str(tmp_path / "z")]
    with pytest.raises(ValueError, match="not inside its folder"):
        get("vm_file", path=path, dest="../escaped")


def test_files_that_the_machine_cannot_read_are_none(get: Get, home: Path) -> None:
    folder = home / "folder.txt"
    folder.mkdir()
    assert get("vm_file", path=str(folder), dest="copy.txt") is None
    looped = home / "loop.txt"
    looped.symlink_to(looped)
    assert get("vm_file", path=str(looped), dest="copy.txt") is None


def test_commands_and_the_terminal(get: Get) -> None:
    assert get("vm_command_line", command=["echo", "hi"]) == "hi\n"
    assert get("vm_command_line", command="echo $((1+1))", shell="true") == "2\n"
    assert get("vm_command_error", command=["/bin/sh", "-c", "echo bad >&2"]) == "bad\n"
    assert get("vm_command_line", command=["no-such-program-at-all"]) is None
    assert isinstance(get("vm_terminal_output"), str)


def test_the_desktop(get: Get, home: Path, tmp_path: Path) -> None:
    assert get("accessibility_tree").startswith("<desktop-frame")
    assert get("vm_screen_size") == {"width": 1024, "height": 768}
    put(home, "Desktop/mail.desktop", "[Desktop Entry]\nName=Mail\n")
    put(home, "Desktop/other.txt", "x")
    listed = get("list_directory", path=str(home / "Desktop"))
    assert {child["name"] for child in listed["children"]} == {"mail.desktop", "other.txt"}
    assert get("shortcuts_on_desktop") == {"mail.desktop": "[Desktop Entry]\nName=Mail\n"}
    wallpaper = get("vm_wallpaper", dest="wallpaper.png")
    assert Path(wallpaper).read_bytes().startswith(b"\x89PNG")
    size = get("vm_window_size", app_class_name="lxterminal")
    assert size["width"] > 100


def test_missing_values_are_none_and_a_silent_machine_is_an_error(
    get: Get, attempt: AttemptContext, home: Path
) -> None:
    assert get("list_directory", path=str(home / "nowhere")) is None
    assert get("vm_window_size", app_class_name="no-such-application") is None
    attempt.controller = Controller(Machine("gone", "127.0.0.1", 9))
    for kind in ("list_directory", "vm_file"):
        with pytest.raises(InfrastructureError):
            get(kind, path="/x", dest="x")


def test_settings_of_applications(
    get: Get, attempt: AttemptContext, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home, ".config/vlc/vlcrc", "qt-max-volume=200\n")
    put(home, ".config/GIMP/2.10/gimprc", "(undo-levels 100)\n")
    assert Path(get("vlc_config", dest="vlcrc")).read_text() == "qt-max-volume=200\n"
    assert Path(get("gimp_config_file", file_name="gimprc", dest="gimprc")).read_text() == "(undo-levels 100)\n"
    with pytest.raises(FileNotFoundError, match="sessionrc"):
        get("gimp_config_file", file_name="sessionrc", dest="x")
    put(home, "OpenProject.txt", "/home/user/project")
    activated: list[str] = []

    async def activate(name: str, **_: Any) -> None:
        activated.append(name)
        raise MachineRefused("there is no such window")

    monkeypatch.setattr(attempt.controller, "activate_window", activate)
    reported = get(
        "vscode_config", vscode_extension_command="Open", path=str(home / "OpenProject.txt"), dest="reported.txt"
    )
    assert Path(reported).read_text() == "/home/user/project"
    asked = {"vscode_extension_command": "Open", "path": str(home / "nothing.txt"), "dest": "reported.txt"}
    assert get("vscode_config", **asked) is None
    folder = '{"folder": "file:///home/user/project"}'
    put(home, ".config/Code/User/workspaceStorage/abc/workspace.json", folder)
    assert Path(get("vscode_config", **asked)).read_text() == folder
    assert activated == ["Visual Studio Code"] * 3


def test_the_default_video_player(get: Get, home: Path) -> None:
    associations = "[Default Applications]\nvideo/mp4=vlc.desktop\nvideo/webm=vlc.desktop\nvideo/ogg=totem.desktop\n"
    put(home, ".config/mimeapps.list", associations)
    put(home, ".local/share/applications/vlc.desktop", "[Desktop Entry]\nType=Application\nName=VLC\nExec=true\n")
    put(home, ".local/share/applications/totem.desktop", "[Desktop Entry]\nType=Application\nName=T\nExec=true\n")
    assert get("default_video_player") == "vlc.desktop\n"


PREFERENCES: dict[str, Any] = {
    "default_search_provider_data": {"template_url_data": {"short_name": "Microsoft Bing"}},
    "profile": {"name": "Thomas", "default_content_setting_values": {"cookies": 4}},
    "webkit": {"webprefs": {"default_font_size": 20}},
    "enable_do_not_track": True,
    "safebrowsing": {"enhanced": False, "enabled": True},
    "session": {"restore_on_startup": 1},
    "browser": {"theme": {"color_scheme2": 2}},
    "extensions": {"settings": {"a": {"path": "/x", "manifest": {"name": "X"}}}},
}


def unread(get: Get) -> None:
    """Assert what OSWorld's getters return for preferences that are not there or broken."""
    for kind, wanted in {
        "default_search_engine": "Google",
        "profile_name": None,
        "chrome_font_size": {"default_fixed_font_size": 13, "default_font_size": 16},
        "enable_do_not_track": "false",
        "enable_safe_browsing": "false",
        "enable_enhanced_safety_browsing": "Google",
        "new_startup_page": "Google",
        "data_delete_automacally": "Google",
        "find_unpacked_extension_path": "Google",
        "find_installed_extension_name": "Google",
    }.items():
        assert get(kind) == wanted, kind


def test_the_profile_of_the_browser(get: Get, home: Path, tmp_path: Path) -> None:
    assert get("default_search_engine") == "Google"
    unread(get)
    assert get("bookmarks") is None
    assert get("cookie_data", dest="c") is None
    profile = ".config/google-chrome/Default"
    put(home, f"{profile}/Preferences", json.dumps(PREFERENCES))
    put(home, f"{profile}/Bookmarks", json.dumps({"roots": {"bookmark_bar": {"children": []}}}))
    for name, statement in (
        ("Cookies", "CREATE TABLE cookies AS SELECT 1 AS created, '.a.org' AS host, x'00' AS secret"),
        ("History", "CREATE TABLE urls AS SELECT 'https://a.org' AS url, 'A' AS title, 5 AS last_visit_time"),
    ):
        made = tmp_path / name
        with sqlite3.connect(made) as connection:
            connection.execute(statement)
        connection.close()
        put(home, f"{profile}/{name}", made.read_bytes())
    for kind, wanted in {
        "default_search_engine": "Microsoft Bing",
        "profile_name": "Thomas",
        "chrome_font_size": {"default_font_size": 20},
        "enable_do_not_track": "true",
        "enable_safe_browsing": "true",
        "enable_enhanced_safety_browsing": "false",
        "new_startup_page": "false",
        "data_delete_automacally": "true",
        "find_unpacked_extension_path": ["/x"],
        "find_installed_extension_name": ["X"],
        "bookmarks": {"bookmark_bar": {"children": []}},
    }.items():
        assert get(kind) == wanted, kind
    assert get("cookie_data", dest="c") == [[1, ".a.org", None]]
    assert get("history", dest="h") == [["https://a.org", "A", 5]]
    put(home, f"{profile}/Preferences", "{broken")
    put(home, f"{profile}/Cookies", b"no database")
    put(home, f"{profile}/Bookmarks", "[]")
    unread(get)
    assert get("cookie_data", dest="c") is None
    assert get("bookmarks") is None
    put(home, f"{profile}/Preferences", "[]")
    unread(get)
    put(home, f"{profile}/Preferences", "{}")
    assert get("new_startup_page") == "true"
    assert get("chrome_font_size")["minimum_font_size"] == 13
    put(home, f"{profile}/Preferences", json.dumps({"extensions": {"settings": {"a": {"path": "/a"}, "b": {}}}}))
    assert get("find_unpacked_extension_path") == "Google"


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({"browser": {"theme": {"color_scheme2": 1, "color_scheme": 2}}}, "light"),
        ({"browser": {"theme": {"color_scheme": 2}}}, "dark"),
        ({"extensions": {"theme": {"system_theme": 0}}, "browser": {"theme": {"color_scheme2": 2}}}, "light"),
        ({"browser": {"theme": {"color_scheme2": 0}}}, "system"),
        ({}, "system"),
        ([], "system"),
    ],
)
def test_the_colour_scheme_of_the_profile(
    get: Get, attempt: AttemptContext, home: Path, monkeypatch: pytest.MonkeyPatch, written: Any, wanted: str
) -> None:
    monkeypatch.setattr(browser, "_SCHEME_LOOKS", 1)
    monkeypatch.setattr(Controller, "devtools", "127.0.0.1:9")  # no browser: the preferences have to tell
    older = put(home, ".config/google-chrome/Default/Preferences", json.dumps(written))
    assert get("chrome_appearance_mode_ui") == wanted
    put(
        home,
        ".config/google-chrome/Profile 1/Preferences",
        json.dumps({"browser": {"theme": {"color_scheme": "Dark"}}}),
    )
    os.utime(older, (1, 1))
    assert get("chrome_appearance_mode_ui") == "dark"


def test_the_last_row_of_a_workbook(get: Get, home: Path, tmp_path: Path) -> None:
    workbook = openpyxl.Workbook()
    for row in (["Name", "Count"], ["a", 1], ["b", 2]):
        workbook["Sheet"].append(row)
    workbook.save(tmp_path / "made.xlsx")
    path = put(home, "rows.xlsx", (tmp_path / "made.xlsx").read_bytes())
    config = {"file_type": "xlsx", "file_content": "last_row"}
    assert get("content_from_vm_file", path=path, **config) == ["b", "2"]
    assert get("content_from_vm_file", path=put(home, "bad.xlsx", "no workbook"), **config) is None
    assert get("content_from_vm_file", path=f"{path}.gone", **config) is None


def test_a_whole_evaluation_on_a_machine(attempt: AttemptContext, home: Path) -> None:
    """Steps that keep their output, files of both sides with the same name, two checks."""
    put(home, "list.txt", "one\ntwo\n")
    evaluator = {
        "postconfig": [
            {"type": "execute", "parameters": {"command": ["cat", str(home / "list.txt")], "stdout": "kept.out"}}
        ],
        "func": ["check_list", "compare_text_file", "check_include_exclude"],
        "result": [
            {"type": "cache_file", "path": "kept.out"},
            {"type": "vm_file", "path": str(home / "list.txt"), "dest": "list.txt"},
            {"type": "vm_command_line", "command": ["wc", "-l", str(home / "list.txt")]},
        ],
        "expected": [
            {"type": "rule", "rules": {"expect": ["^two$"]}},
            {"type": "vm_file", "path": str(home / "other.txt"), "dest": "list.txt"},
            {"type": "rule", "rules": {"include": ["2 "]}},
        ],
    }

    def scored() -> float:
        return asyncio.run(asyncio.wait_for(evaluate(evaluator, attempt), 100))

    put(home, "other.txt", "one\ntwo\n")
    assert scored() == 1
    put(home, "other.txt", "one\nthree\n")
    assert scored() == 0  # the files are not taken for each other although they share a name


# --- files from the network ------------------------------------------------------------------------------------------------


class Site:
    """A web server with a few files that counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                if self.path.startswith("/status"):
                    wanted = self.headers.get("Authorization") == "Basic OnBhc3N3b3Jk"
                    self.answer(200 if wanted else 401, b"<root/>")
                elif self.path == "/moved":
                    self.send_response(302)
                    self.send_header("Location", "/gold.txt")
                    self.end_headers()
                elif self.path == "/cut":
                    self.answer(200, b"short", length=100)
                elif self.path == "/flaky" and site.asked.count("/flaky") == 1:
                    self.answer(503, b"")
                elif self.path == "/gone":
                    self.answer(404, b"")
                else:
                    self.answer(200, b"gold\n")

            def answer(self, status: int, body: bytes, length: int | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    monkeypatch.setenv("PARAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(access_module, "_PAUSE", 0.01)
    made = Site()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join(10)


def test_files_are_downloaded_once(get: Get, site: Site, tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        path = get("cloud_file", path=f"{site.address}/gold.txt", dest=name)
        assert Path(path).read_text() == "gold\n"
    assert site.asked == ["/gold.txt"]
    several = {"path": [f"{site.address}/a", f"{site.address}/b"], "dest": ["a", "b"], "multi": True, "gives": [0, 1]}
    assert get("cloud_file", **several) == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert Path(get("cloud_file", path=f"{site.address}/moved", dest="m")).read_text() == "gold\n"
    assert Path(get("cloud_file", path=f"{site.address}/flaky", dest="f")).read_text() == "gold\n"


def test_a_failed_download_is_an_infrastructure_error(get: Get, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFailed, match="404"):
        get("cloud_file", path=f"{site.address}/gone", dest="x")
    assert site.asked.count("/gone") == 1
    with pytest.raises(EnvironmentFailed, match="cannot fetch"):
        get("cloud_file", path=f"{site.address}/cut", dest="x")
    assert site.asked.count("/cut") == 3
    with pytest.raises(EnvironmentFailed, match="only http"):
        get("cloud_file", path="file:///etc/passwd", dest="x")
    monkeypatch.setattr(access_module, "_LARGEST", 3)
    with pytest.raises(EnvironmentFailed, match="more than"):
        get("cloud_file", path=f"{site.address}/large", dest="x")


def test_the_download_cache_stays_within_its_limit(get: Get, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_KEPT", 12)  # two files of five bytes
    for name in ("a", "b", "a", "c", "a", "b"):
        get("cloud_file", path=f"{site.address}/{name}", dest="x")
    assert site.asked == ["/a", "/b", "/c", "/b"]  # b was the one that was not used when c came


def test_the_status_of_vlc_is_requested_on_the_machine(get: Get, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(site.server.server_address[1])
    monkeypatch.setattr(applications, "VLC_STATUS", applications.VLC_STATUS.replace("8080/requests", f"{port}"))
    assert Path(get("vlc_playing_info", dest="status.xml")).read_text().strip() == "<root/>"


# --- what needs no guest ---------------------------------------------------------------------------------------------------

MONDAY, FRIDAY, SUNDAY = dt.date(2026, 11, 16), dt.date(2026, 11, 20), dt.date(2026, 11, 22)


@pytest.mark.parametrize(
    ("words", "today", "wanted"),
    [
        ("tomorrow", MONDAY, "2026-11-17"),
        ("this month", MONDAY, "2026-11-16"),
        ("this Saturday", MONDAY, "2026-11-21"),
        ("this Sunday", SUNDAY, "2026-11-22"),
        ("next Monday", MONDAY, "2026-11-23"),
        ("next Monday split", SUNDAY, "2026-11-23"),
        ("next Friday", MONDAY, "2026-11-20"),
        ("next Friday", FRIDAY, "2026-11-27"),
        ("next Friday", SUNDAY, "2026-11-27"),
        ("next Saturday", SUNDAY, "2026-11-28"),
        ("next Sunday", SUNDAY, "2026-11-29"),
        ("next week Saturday", MONDAY, "2026-11-28"),
        ("next week Sunday", SUNDAY, "2026-11-29"),
        ("5th next month", dt.date(2026, 12, 31), "2027-01-05"),
        ("10th next month", MONDAY, "2026-12-10"),
        ("first monday four months later", MONDAY, "2027-03-01"),
        ("first monday eight months later", dt.date(2026, 4, 30), "2026-12-07"),
    ],
)
def test_phrases_for_dates(words: str, today: dt.date, wanted: str) -> None:
    assert day_of(words, today).isoformat() == wanted


def test_placeholders_for_dates() -> None:
    day = dt.date(2026, 3, 5)
    assert fill_in("{DoW}, {Month} {Day0D}, {Year}", day) == "Thu, Mar 05, 2026"
    assert fill_in(["{MonthD}/{DayD}", "{Month0D}", "{month}-weather", "{MonthFull}"], day) == [
        "3/5",
        "03",
        "march-weather",
        "March",
    ]


def test_without_a_time_zone_today_is_the_machines_date(
    get: Get, attempt: AttemptContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {"relativeTime": {"from": "this month"}, "expected": {"time": "{Year}-{Month0D}-{Day0D}"}}
    answers = {"2031-02-28\n": "2031-02-28", "": dt.datetime.now(dt.UTC).date().isoformat()}
    for printed, wanted in answers.items():

        async def execute(*_: Any, printed: str = printed, **__: Any) -> CommandReply:
            return CommandReply(printed, "", 0)

        monkeypatch.setattr(attempt.controller, "execute", execute)
        for zone in ({}, {"timezone": ""}):
            assert get("rule_relativeTime", rules=rules | zone)["expected"]["time"] == wanted


def test_rules_with_dates_are_filled_in(get: Get) -> None:
    today = dt.date.today()  # noqa: DTZ011 - the machine's clock and zone are this host's
    single = {"relativeTime": {"from": "tomorrow"}, "expected": {"to": "ORD", "time": "{Year}-{Month0D}-{Day0D}"}}
    found = get("rule_relativeTime", rules=single)
    assert found["expected"]["to"] == "ORD"
    assert found["expected"]["time"] in {(today + dt.timedelta(days=days)).isoformat() for days in (1, 2)}
    form = dict.fromkeys(["puDay", "doDay"], "{DayD}") | dict.fromkeys(["puMonth", "doMonth"], "{MonthD}")
    form |= dict.fromkeys(["puYear", "doYear"], "{Year}")
    words = {"from": "next Monday split", "to": "next Friday split"}
    split = get("rule_relativeTime", rules={"relativeTime": words, "timezone": "Europe/Zurich", "expected": form})[
        "expected"
    ]
    days = [dt.date(*(int(split[f"{side}{part}"]) for part in ("Year", "Month", "Day"))) for side in ("pu", "do")]
    assert (days[1] - days[0]).days == 4
    assert days[0].weekday() == 0
    span = {"relativeTime": {"from": "next week Saturday", "to": "next week Sunday"}, "timezone": "Nowhere/Land"}
    both = get("rule_relativeTime", rules=span | {"expected": {"from": "{DoW}", "to": "{DoW}"}})["expected"]
    assert both == {"from": "Sat", "to": "Sun"}


def bar(text: str, browser: str = "Google Chrome", more: str = "") -> str:
    return f'<application name="{browser}"><entry name="Address and search bar" {more}>{text}</entry></application>'


STATE = 'xmlns:st="https://accessibility.ubuntu.example.org/ns/state"'


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [
        (bar("a.org"), "a.org"),
        (bar("a.org", "Chromium"), "a.org"),
        (bar("a.org", "Firefox"), None),
        (bar("a.org") + bar("b.org"), "a.org"),
        (bar("a.org") + bar("b.org", more='st:focused="true"'), "a.org"),
        (bar(" www.a.org "), " www.a.org "),
        (bar(""), None),
        (bar("a.org") + bar(""), None),
        (bar("") + bar("b.org"), "None"),
        ("", None),
    ],
)
def test_the_address_bar_of_the_tree(tree: str, wanted: str | None) -> None:
    assert address_bar(f"<desktop-frame {STATE}>{tree}</desktop-frame>") == wanted


def test_filters_of_a_shop() -> None:
    keys = ["mens_clothing", "shirts", "Men_regular_size_t", "Price_discount_range", "short_sleeve"]
    path = "/shop/mens-clothing/mens-shirts/Men_regular_size_t,Price_discount_range,Sleeve_length/L,{},Short Sleeve"
    right: Mapping[str, Any] = {
        "mens_clothing": True,
        "shirts": True,
        "Men_regular_size_t": "L",
        "Price_discount_range": "50_PERCENT_ off & more",
        "short_sleeve": True,
    }
    assert filters_of(path.format("50_PERCENT_ off & more"), keys) == right
    both = filters_of(path.format("30_PERCENT_ off & more|50_PERCENT_ off & more"), keys)
    assert both["Price_discount_range"] == "not_50_PERCENT_ off & more"
    assert filters_of("/shop/womens", keys)["mens_clothing"] is None
