"""The image `desktop` in QEMU: screenshots of the emulated display, input, accessibility, resets, pauses.

`make test` builds the image and its golden state before; otherwise the first test does it, which takes minutes.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from paragent import LeaseLost, MachineFailed, VMPoolManager
from paragent.machines import Machine, MachineSettings
from paragent.machines.guest_client import json_body
from paragent.machines.images import image_folder
from paragent.machines.images.desktop import desktop_image
from paragent.testing.provider_contract import ProviderContract
from tests.waiting import wait_until

pytestmark = [pytest.mark.qemu, pytest.mark.slow, pytest.mark.timeout(1200)]
SECONDS = 250.0
"""Time limit of one step: an emulated machine on a busy host is slow."""


@pytest.fixture(scope="module")
def pool() -> Iterator[VMPoolManager]:
    with VMPoolManager("qemu", 1, spares=1, name="desktops", desktop=True, forwards=(9222,)) as opened:
        yield opened


@pytest.fixture
def machine(pool: VMPoolManager) -> Iterator[Machine]:
    with pool.lease(timeout=SECONDS) as leased:
        yield leased


def until(condition: Callable[[], Any], what: str) -> Any:
    return wait_until(condition, SECONDS, what=what, interval=0.1)


def act(machine: Machine, code: str) -> None:
    done = machine.execute(["python", "-c", f"import pyautogui; pyautogui.FAILSAFE = False; {code}"])
    assert done.ok, done


def tree(machine: Machine) -> ET.Element:
    return ET.fromstring(machine.request("GET", "/accessibility", timeout=SECONDS).json()["AT"])


def test_screenshots_of_the_display_and_of_the_agent_have_the_same_size(machine: Machine) -> None:
    by_display, by_agent = machine.screenshot(), machine.request("GET", "/screenshot", timeout=SECONDS).body
    for image in (by_display, by_agent):
        assert image.startswith(b"\x89PNG")
        assert (int.from_bytes(image[16:20]), int.from_bytes(image[20:24])) == (1920, 1080)
    assert machine.details["screen"] != machine.address
    assert 9222 in machine.ports


def test_typed_text_appears_on_the_screen_and_in_the_tree(machine: Machine) -> None:
    before = machine.screenshot()
    root = tree(machine)
    assert {program.attrib["name"] for program in root} >= {"mousepad", "galculator", "thunar", "lxterminal"}
    act(machine, "pyautogui.click(1300, 300); pyautogui.typewrite('typed in a machine')")
    until(lambda: any(e.text == "typed in a machine" for e in tree(machine).iter("text")), "the text")
    assert machine.screenshot() != before
    menus = {item.attrib["name"] for item in root.iter("menu")}
    assert menus >= {"File", "Edit", "View", "Help"}


def test_the_terminal_runs_commands_as_user_and_root(machine: Machine) -> None:
    fields = {"window_name": "lxterminal", "by_class": True}
    assert machine.request("POST", "/setup/activate_window", json_body(fields), timeout=SECONDS).status == 200
    act(machine, "pyautogui.click(400, 800); pyautogui.typewrite('id -un; echo password | sudo -S id -un\\n')")
    seen = until(lambda: _terminal(machine, "root\n"), "the output")
    assert "\nuser\n" in seen
    assert machine.execute(["id", "-un"]).output == "user\n"
    assert machine.execute("echo ~").output == "/home/user\n"


def _terminal(machine: Machine, text: str) -> str | None:
    seen = machine.request("GET", "/terminal", timeout=SECONDS).json()["output"] or ""
    return seen if text in seen else None


def test_a_reset_restores_the_identical_desktop(pool: VMPoolManager) -> None:
    lease = pool.allocate(timeout=SECONDS)
    former = lease.machine
    first = former.screenshot()
    act(former, "pyautogui.click(1300, 300); pyautogui.typewrite('left behind'); pyautogui.moveTo(5, 5)")
    former.put_file("Desktop/left", b"x")
    until(lambda: former.screenshot() != first, "a change")
    fresh = lease.reset()
    until(lambda: fresh.screenshot() == first, "the identical desktop")
    assert "left" not in fresh.execute("ls Desktop").output
    with pytest.raises((MachineFailed, LeaseLost)):
        former.screenshot()
    other_client = Machine(fresh.id, fresh.host, fresh.port, "12345", fresh.ports, fresh.details)
    with pytest.raises(LeaseLost):
        other_client.screenshot()
    lease.release()


def test_a_paused_machine_does_not_answer_but_has_screenshots(pool: VMPoolManager) -> None:
    lease = pool.allocate(timeout=SECONDS)
    before = lease.machine.screenshot()
    lease.pause()
    with pytest.raises(MachineFailed):
        lease.machine.request("GET", "/platform", timeout=1.0)
    assert lease.machine.screenshot() == before
    lease.resume()
    lease.resume()
    assert lease.machine.platform() == "Linux"
    lease.pause()
    lease.release()
    with pool.lease(timeout=SECONDS) as machine:
        assert machine.platform() == "Linux"
    with pytest.raises(LeaseLost):
        lease.resume()


def test_the_image_is_found_by_its_name_and_by_its_file() -> None:
    image = desktop_image()
    assert image.disk == image_folder("desktop") / "disk.qcow2"
    assert desktop_image().key == image.key
    with (
        VMPoolManager("qemu", 1, spares=0, name="by-file", path_to_vm=str(image.disk)) as pool,
        pool.lease(timeout=SECONDS) as machine,
    ):
        assert machine.platform() == "Linux"


class TestContract(ProviderContract):
    provider = "qemu"
    settings: ClassVar[MachineSettings] = MachineSettings(path_to_vm="desktop")
