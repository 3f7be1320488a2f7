"""The requests of OSWorld's guest protocol, with a `process` desktop."""

from __future__ import annotations

import http.server
import json
import struct
import threading
import xml.etree.ElementTree as ET
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paragent import ConfigError, LeaseLost, VMPoolManager
from paragent.machines import Machine
from paragent.machines.guest_client import GuestReply, form_body, json_body, upload_body
from tests.waiting import wait_until

SIZE = (1280, 800)
SPACE = "{https://accessibility.ubuntu.example.org/ns/%s}"
SECONDS = 60.0


pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def desktop() -> Iterator[Machine]:
    with (
        VMPoolManager("process", 1, spares=0, name="desktop", screen=SIZE, options={"desktop": True}) as pool,
        pool.lease(timeout=100) as leased,
    ):
        yield leased


@pytest.fixture
def machine(desktop: Machine) -> Machine:
    """Return the desktop of all tests, with an editor, which a test before may have closed."""

    def editor() -> bool:
        form = form_body({"app_class_name": "mousepad"})
        return desktop.request("POST", "/window_size", form, timeout=SECONDS).status == 200

    if not editor():
        post(desktop, "/setup/launch", command=["mousepad"])
        until(editor, "the editor")
    return desktop


def post(machine: Machine, request: str, /, **fields: Any) -> GuestReply:
    return machine.request("POST", request, json_body(fields), timeout=SECONDS)


def get(machine: Machine, path: str) -> GuestReply:
    return machine.request("GET", path, timeout=SECONDS)


def python(machine: Machine, code: str) -> dict[str, Any]:
    """Run a program in the way in which OSWorld's client sends actions."""
    code = f"import pyautogui; import time; pyautogui.FAILSAFE = False; {code}"
    answer: dict[str, Any] = post(machine, "/execute", command=["python", "-c", code], shell=False).json()
    return answer


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until `condition` returns a true value and return it."""
    return wait_until(condition, SECONDS, what=what, interval=0.05)


def drawn_screen(machine: Machine) -> bytes:
    """Return a screenshot once ten in a row, taken over half a second, are the same: programs draw after their windows appear."""
    taken: deque[bytes] = deque(maxlen=10)

    def is_drawn() -> bool:
        taken.append(machine.screenshot())
        return len(taken) == taken.maxlen and len(set(taken)) == 1

    until(is_drawn, "a desktop that is drawn")
    return taken[-1]


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Return width, height and pixels of a PNG file of our agent or of QEMU's display."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    assert (depth, colour) == (8, 2)
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    return width, height, zlib.decompress(data)


def tree(machine: Machine) -> ET.Element:
    return ET.fromstring(get(machine, "/accessibility").json()["AT"])


def place(element: ET.Element) -> tuple[int, int]:
    """Return the centre of an element on the screen."""
    x, y = json.loads(element.attrib[SPACE % "component" + "screencoord"].replace("(", "[").replace(")", "]"))
    width, height = json.loads(element.attrib[SPACE % "component" + "size"].replace("(", "[").replace(")", "]"))
    return x + width // 2, y + height // 2


def test_a_screenshot_has_the_whole_screen(machine: Machine) -> None:
    reply = get(machine, "/screenshot")
    width, height, data = pixels(reply.body)
    assert (width, height) == SIZE
    assert len(data) == (width * 3 + 1) * height
    assert len(set(data[1000:200000])) > 20
    assert machine.screenshot().startswith(b"\x89PNG")


def test_platform_screen_size_pointer_and_folders(machine: Machine) -> None:
    assert get(machine, "/platform").body == b"Linux"
    assert post(machine, "/screen_size").json() == {"width": SIZE[0], "height": SIZE[1]}
    python(machine, "pyautogui.moveTo(100, 200)")
    assert get(machine, "/cursor_position").json() == [100, 200]
    desktop = post(machine, "/desktop_path").json()["desktop_path"]
    assert desktop.endswith("/Desktop")
    machine.put_file("Desktop/notes/a.txt", b"1")
    assert post(machine, "/list_directory", path=desktop).json()["directory_tree"] == {
        "type": "directory",
        "name": "Desktop",
        "children": [{"type": "directory", "name": "notes", "children": [{"type": "file", "name": "a.txt"}]}],
    }


def test_files_are_transferred(machine: Machine) -> None:
    reply = machine.request("POST", "/setup/upload", upload_body("/tmp/paragent-test/x", b"\0\xff"), timeout=SECONDS)
    assert reply.body == b"File Uploaded: 2 bytes"
    got = machine.request("POST", "/file", form_body({"file_path": "/tmp/paragent-test/x"}), timeout=SECONDS)
    assert got.body == b"\0\xff"
    assert machine.request("POST", "/file", form_body({"file_path": "/no/such"}), timeout=SECONDS).status == 404


def test_commands_are_executed(machine: Machine) -> None:
    done = post(machine, "/execute", command="echo $HOME; exit 3", shell=True).json()
    assert done["status"] == "success"
    assert done["output"].strip().endswith("/home")
    assert done["returncode"] == 3
    assert post(machine, "/setup/execute", command="echo plain text", shell=False).json()["output"] == "plain text\n"
    assert post(machine, "/execute", command=["no-such-program"]).status == 500
    late = post(machine, "/execute", command=["sleep", "100"], timeout=0.5)
    assert (late.status, "timed out" in late.json()["message"]) == (500, True)
    assert b"launched successfully" in post(machine, "/setup/launch", command=["true"]).body


def test_programs_in_the_fork_server_run_like_in_a_new_interpreter(machine: Machine) -> None:
    first, second = (python(machine, "import os; print(os.getpid(), __name__)") for _ in range(2))
    assert first["output"].split()[1] == "__main__"
    assert first["output"] != second["output"]
    failed = python(machine, "1 / 0")
    assert failed["returncode"] == 1
    assert failed["error"].startswith('Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n')
    assert python(machine, "raise SystemExit(5)")["returncode"] == 5
    assert python(machine, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")["returncode"] == -9
    slow = post(machine, "/execute", command=["python3", "-c", "while True: pass"], timeout=0.5)
    assert (slow.status, "timed out" in slow.json()["message"]) == (500, True)
    cold = post(machine, "/execute", command="python3 -c 'import pyautogui; print(pyautogui.size().width)'", shell=True)
    assert cold.json()["output"] == f"{SIZE[0]}\n"


def test_run_python_and_run_bash_script(machine: Machine) -> None:
    good = post(machine, "/run_python", code="print(6 * 7)").json()
    assert (good["status"], good["output"], good["return_code"], good["need_more"]) == ("success", "42\n", 0, False)
    bad = post(machine, "/run_python", code="x = ").json()
    assert (bad["status"], "SyntaxError" in bad["error"]) == ("error", True)
    script = post(machine, "/run_bash_script", script="pwd; echo oops >&2; exit 4", working_dir="/usr").json()
    assert script == {"status": "error", "output": "/usr\noops\n", "error": "", "returncode": 4}
    late = post(machine, "/run_bash_script", script="sleep 50", timeout=0.5)
    assert late.status == 500
    assert late.json()["output"] == "Script execution timed out after 0.5 seconds"
    assert (late.json()["status"], late.json()["error"], late.json()["returncode"]) == ("error", "", -1)
    nowhere = post(machine, "/run_bash_script", script="true", working_dir="/no/such")
    assert (nowhere.status, nowhere.json()["returncode"]) == (400, -1)


def test_variables_and_the_home_folder_in_paths_are_replaced(machine: Machine) -> None:
    machine.execute("printf hello > ~/variable.txt")
    for path in ("$HOME/variable.txt", "${HOME}/variable.txt", "~/variable.txt", "variable.txt"):
        assert machine.request("POST", "/file", form_body({"file_path": path}), timeout=SECONDS).body == b"hello"
    listed = post(machine, "/list_directory", path="$HOME").json()["directory_tree"]["children"]
    assert "variable.txt" in {child["name"] for child in listed}


def test_the_clipboard_and_images_of_pillow(machine: Machine) -> None:
    copied = python(machine, "import pyperclip; pyperclip.copy('Grüße\\n你'); print(repr(pyperclip.paste()))")
    assert copied["output"] == "'Grüße\\n你'\n", copied
    later = python(machine, "import pyperclip; print(pyperclip.paste() == 'Grüße\\n你', pyperclip.is_available())")
    assert later["output"] == "True True\n"
    part = "pyautogui.screenshot('part.png', region=(10, 20, 30, 40))"
    pictures = python(machine, f"print(pyautogui.screenshot().size, {part}.size, type({part}).__module__)")
    assert pictures["output"] == f"{SIZE} (30, 40) PIL.Image\n", pictures


def test_the_tree_equals_that_of_pyatspi(machine: Machine) -> None:
    root = tree(machine)
    act, attr, val, st = (SPACE % name for name in ("action", "attributes", "value", "state"))
    frames = list(root.iter("frame"))
    assert frames
    assert all(frame.attrib[f"{attr}window-type"] == "normal" for frame in frames)
    assert not any(f"{attr}toolkit" in application.attrib for application in root)
    items = [item for item in root.iter("menu-item") if item.attrib["name"] == "Quit"]
    assert items
    assert all(item.attrib[f"{act}click_desc"] == "Clicks the menuitem" for item in items)
    bars = list(root.iter("scroll-bar"))
    assert bars
    for bar in bars:
        assert (f"{st}horizontal" in bar.attrib) != (f"{st}vertical" in bar.attrib)
        assert {f"{val}{name}" for name in ("value", "min", "max", "step")} <= bar.attrib.keys()
    for pane in root.iter("scroll-pane"):  # the widget comes first, then its scroll bars
        assert [child.tag for child in pane].index("scroll-bar") > 0
    menus = next(root.iter("menu-bar"))
    places = [place(menu) for menu in menus if f"{st}showing" in menu.attrib]
    assert places == sorted(places)
    assert tree(machine).find(".//menu-item").attrib == root.find(".//menu-item").attrib  # type: ignore[union-attr]


def test_windows_are_found_activated_measured_and_closed(machine: Machine) -> None:
    post(machine, "/setup/launch", command=["lxterminal", "--no-remote", "--title", "Short Life"])
    until(lambda: post(machine, "/setup/activate_window", window_name="short").status == 200, "the window")
    assert post(machine, "/setup/activate_window", window_name="short", strict=True).status == 404
    assert post(machine, "/setup/activate_window", window_name="Short Life", strict=True).status == 200
    size = machine.request("POST", "/window_size", form_body({"app_class_name": "mousepad"}), timeout=SECONDS).json()
    assert size["width"] > 200
    assert size["height"] > 100
    assert machine.request("POST", "/window_size", form_body({"app_class_name": "none"}), timeout=SECONDS).status == 404
    post(machine, "/setup/close_window", window_name="Short Life")
    until(lambda: post(machine, "/setup/close_window", window_name="Short Life").status == 404, "its end")


def test_typed_text_arrives_and_the_tree_has_positions(machine: Machine) -> None:
    post(machine, "/setup/activate_window", window_name="mousepad", by_class=True)
    before = machine.screenshot()
    text = until(lambda: [e for e in tree(machine).iter("text") if SPACE % "state" + "focused" in e.attrib], "a text")[
        0
    ]
    x, y = place(text)
    empty = f"pyautogui.click({x}, {y}); pyautogui.hotkey('ctrl', 'a'); pyautogui.press('delete')"
    typed = python(machine, f"{empty}; pyautogui.typewrite('Hi <There>! \\u00e4\\u4f60', interval=0.02)")
    assert typed["returncode"] == 0, typed
    until(lambda: any(e.text == "Hi <There>! ä你" for e in tree(machine).iter("text")), "the text")
    assert machine.screenshot() != before
    python(machine, "pyautogui.hotkey('ctrl', 'a'); pyautogui.press('delete')")
    until(lambda: not any((e.text or "").startswith("Hi") for e in tree(machine).iter("text")), "its deletion")
    python(machine, "pyautogui.hotkey('Q'); pyautogui.press('W'); pyautogui.press('Enter')")
    until(lambda: any(e.text == "QW\n" for e in tree(machine).iter("text")), "keys in their case")
    python(machine, "pyautogui.hotkey('ctrl', 'a'); pyautogui.press('delete')")


def test_menus_open_at_the_position_in_the_tree(machine: Machine) -> None:
    post(machine, "/setup/activate_window", window_name="galculator")
    root = tree(machine)
    assert root.tag == "desktop-frame"
    assert {app.attrib["name"] for app in root} >= {"mousepad", "galculator", "thunar", "lxterminal"}
    calculator = next(app for app in root if app.attrib["name"] == "galculator")
    for key in ("7", "*", "6", "="):
        button = next(e for e in calculator.iter("toggle-button") if e.attrib["name"] == key)
        x, y = place(button)
        python(machine, f"pyautogui.click({x}, {y})")
    until(lambda: any((e.text or "").strip() == "42" for e in tree(machine).iter("text")), "the result")


def test_the_active_terminal_is_read(machine: Machine) -> None:
    assert post(machine, "/setup/activate_window", window_name="lxterminal", by_class=True).status == 200
    until(lambda: get(machine, "/terminal").json()["output"], "a prompt")
    python(machine, "pyautogui.typewrite('echo to-$((40 + 2))\\n')")
    until(lambda: "to-42" in (get(machine, "/terminal").json()["output"] or ""), "the output")
    post(machine, "/setup/activate_window", window_name="mousepad", by_class=True)
    until(lambda: get(machine, "/terminal").json() == {"output": None, "status": "success"}, "another window in front")


def test_functions_of_pyautogui_control_mouse_and_keyboard(machine: Machine) -> None:
    code = (
        "pyautogui.PAUSE = 0; pyautogui.moveTo(300, 300, duration=0.2, tween=pyautogui.easeInOutQuad);"
        "pyautogui.moveRel(10, -20); pyautogui.dragTo(400, 310, duration=0.2); pyautogui.scroll(-2); pyautogui.hscroll(1);"
        "pyautogui.mouseDown(); pyautogui.mouseUp(); pyautogui.keyDown('shift'); pyautogui.keyUp('shift');"
        "pyautogui.press(['esc', 'nonsense']); print(tuple(pyautogui.position()), pyautogui.isValidKey('pagedown'),"
        "pyautogui.onScreen(5000, 1), len(pyautogui.pixel(1, 1)), pyautogui.KEYBOARD_KEYS.index('a') > 0)"
    )
    assert python(machine, code)["output"] == "(400, 310) True False 3 True\n"
    stopped = post(
        machine,
        "/run_python",
        code="import pyautogui as p; p.FAILSAFE = False; p.moveTo(0, 0)\np.FAILSAFE = True; p.click()",
    )
    assert "FailSafeException" in stopped.json()["error"]


def test_files_are_opened_with_their_application(machine: Machine) -> None:
    machine.put_file("Documents/shopping list.txt", b"bread\n")
    assert post(machine, "/setup/open_file", path="~/Documents/shopping list.txt").status == 200
    assert post(machine, "/setup/activate_window", window_name="shopping list").status == 200
    until(lambda: any("bread" in (e.text or "") for e in tree(machine).iter("text")), "its text")
    post(machine, "/setup/close_window", window_name="shopping list")
    assert post(machine, "/setup/open_file", path="/no/such").status == 404


def test_programs_are_started_by_name_and_windows_are_activated(machine: Machine) -> None:
    machine.execute("echo x > ~/front.txt")
    assert b"activated" in post(machine, "/setup/open_file", path="$HOME/front.txt").body
    assert post(machine, "/setup/open_file", path="galculator").status == 200
    until(lambda: "galculator" in front(machine).lower(), "the calculator in front")
    assert post(machine, "/setup/open_file", path="~/front.txt").status == 200
    until(lambda: "front.txt" in front(machine), "the file in front")
    missing = post(machine, "/setup/open_file", path="no-such-program-at-all")
    assert (missing.status, b"not found" in missing.body) == (404, True)


def front(machine: Machine) -> str:
    """Return the title of the active window in the tree."""
    active = [frame for frame in tree(machine).iter("frame") if SPACE % "state" + "active" in frame.attrib]
    return str(active[0].attrib["name"]) if active else ""


def test_files_are_downloaded(machine: Machine) -> None:
    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/data" else 404)
            self.end_headers()
            self.wfile.write(b"downloaded")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{site.server_port}"
        assert post(machine, "/setup/download_file", url=f"{url}/data", path="~/Downloads/new/file").status == 200
        assert machine.get_file("Downloads/new/file") == b"downloaded"
        assert post(machine, "/setup/download_file", url=f"{url}/absent", path="x").status == 500
        assert post(machine, "/setup/download_file", url="file:///etc/passwd", path="x").status == 400
        site.shutdown()


def test_the_wallpaper_is_changed_and_returned(machine: Machine) -> None:
    before = post(machine, "/wallpaper").body
    assert before.startswith(b"\x89PNG")
    machine.put_file("Pictures/shot.png", machine.screenshot())
    assert post(machine, "/setup/change_wallpaper", path="~/Pictures/shot.png").status == 200
    assert post(machine, "/wallpaper").body == machine.get_file("Pictures/shot.png")
    machine.put_file("Pictures/broken.png", b"no picture")
    assert post(machine, "/setup/change_wallpaper", path="~/Pictures/broken.png").status == 500
    assert post(machine, "/setup/change_wallpaper", path="/no/such").status == 404


def test_commands_wait_for_their_verification(machine: Machine) -> None:
    answer = post(
        machine,
        "/execute_with_verification",
        command="touch /tmp/paragent-test/verified",
        shell=True,
        verification={"command_success": "test -e /tmp/paragent-test/verified", "window_exists": "galculator"},
    ).json()
    assert (answer["status"], answer["returncode"]) == ("success", 0)
    assert answer["wait_time"] >= 0
    refused = post(
        machine,
        "/setup/execute_with_verification",
        command=["true"],
        verification={"window_exists": "no such window"},
        max_wait_time=0.3,
        check_interval=0.1,
    )
    assert refused.status == 500


def test_the_screen_is_recorded(machine: Machine) -> None:
    assert post(machine, "/end_recording").status == 400
    assert post(machine, "/start_recording").json()["status"] == "success"
    assert post(machine, "/start_recording").status == 400
    python(machine, "pyautogui.moveTo(500, 500); time.sleep(0.5)")
    recording = post(machine, "/end_recording").body
    assert recording[4:8] == b"ftyp"
    assert b"moov" in recording
    assert len(recording) > 1000


def test_invalid_requests_are_rejected_and_the_agent_goes_on(machine: Machine) -> None:
    assert get(machine, "/no/such").status == 404
    assert post(machine, "/execute").status == 400
    assert post(machine, "/run_python").status == 400
    assert post(machine, "/setup/activate_window").status == 400
    assert get(machine, "/platform").status == 200


def test_a_reset_desktop_is_new_for_the_next_holder() -> None:
    options = {"desktop": True, "applications": "editor"}
    with VMPoolManager("process", 1, spares=0, name="hands", screen=(800, 600), options=options) as pool:
        lease = pool.allocate(timeout=100)
        former = lease.machine
        first = drawn_screen(former)
        former.execute(["python", "-c", "import pyautogui; pyautogui.click(500, 200); pyautogui.write('left behind')"])
        lease.pause()
        lease.resume()
        lease.release()
        with pool.lease(timeout=100) as machine:
            until(lambda: machine.screenshot() == first, "the same desktop as in the beginning")
            with pytest.raises(Exception, match=r"refused|another holder|closed|reset"):
                former.screenshot()
            assert "left behind" not in get(machine, "/accessibility").json()["AT"]
        with pytest.raises(LeaseLost):
            lease.pause()


def test_an_unknown_application_is_rejected() -> None:
    with pytest.raises(ConfigError, match="no application 'games'"):
        VMPoolManager("process", 1, name="games", options={"desktop": True, "applications": "games"}).start()
