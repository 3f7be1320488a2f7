"""The accessibility tree as a table of visible widgets with their centres."""

from __future__ import annotations

import pytest

from paragent.osworld.observation import as_table, widgets

HEAD = "".join(
    f' xmlns:{short}="https://accessibility.{{system}}.example.org/ns/{name}"'
    for short, name in (("st", "state"), ("cp", "component"), ("val", "value"))
)
SEEN = 'st:showing="true" st:visible="true" st:enabled="true" st:sensitive="true"'


def tree(body: str, system: str = "ubuntu") -> str:
    return f"<desktop-frame{HEAD.format(system=system)}>{body}</desktop-frame>"


def node(role: str, name: str, place: tuple[int, int, int, int], more: str = SEEN, text: str = "") -> str:
    x, y, width, height = place
    return f'<{role} name="{name}" cp:screencoord="({x}, {y})" cp:size="({width}, {height})" {more}>{text}</{role}>'


@pytest.mark.parametrize("system", ["ubuntu", "windows", "macos"])
def test_visible_widgets_have_a_centre(system: str) -> None:
    xml = tree(
        node("push-button", "Save", (10, 20, 30, 40))
        + node("entry", "", (0, 0, 100, 20), f'{SEEN} st:editable="true" st:focused="true"', "two\nlines")
        + node("label", "Name", (5, 5, 10, 10), SEEN, "Name")
        + node("slider", "Volume", (1, 1, 8, 8), f'{SEEN} val:value="0.5"'),
        system,
    )
    table = as_table(widgets(xml, (200, 100))).split("\n")
    assert table[0] == "role\tname\ttext\tmiddle\tsize"
    assert table[1] == "push-button\tSave\t\t25, 40\t30x40"
    assert table[2] == "entry\t\ttwo lines (focused)\t50, 10\t100x20"
    assert table[3] == "label\tName\t\t10, 10\t10x10"
    assert table[4] == "slider\tVolume\t0.5\t5, 5\t8x8"
    assert as_table(widgets(xml, (200, 100)), numbered=True).split("\n")[1].startswith("1\tpush-button")


def test_invisible_widgets_are_omitted() -> None:
    hidden = 'st:visible="true" st:enabled="true"'
    xml = tree(
        node("push-button", "hidden", (0, 0, 5, 5), hidden)
        + node("push-button", "far", (500, 0, 5, 5))
        + node("push-button", "flat", (0, 0, 5, 0))
        + node("panel", "", (0, 0, 5, 5))
        + '<push-button name="nowhere" st:showing="true" st:visible="true"/>'
        + node("push-button", "off", (0, 0, 5, 5), 'st:showing="true" st:visible="true"')
    )
    [only] = widgets(xml, (200, 100))
    assert only.name == "off"
    assert "disabled" in as_table([only])


def test_long_trees_and_texts_are_truncated() -> None:
    seen = widgets(tree(node("label", "x" * 5000, (0, 0, 9, 9)) * 3000), (200, 100))
    table = as_table(seen)
    assert len(table) < 200_000
    assert table.endswith("more")


def test_malformed_xml_is_rejected() -> None:
    with pytest.raises(ValueError, match="not valid XML"):
        widgets("<desktop-frame>", (200, 100))
