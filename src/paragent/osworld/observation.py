"""What an agent is shown of a desktop, and when: after an action, as soon as the screen is quiet."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paragent.errors import EnvironmentFailed
from paragent.osworld.context import GuestRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paragent.osworld.controller import Controller
    from paragent.osworld.recording import Film

__all__ = ["Observation", "Observer", "Widget", "as_table", "draw_marks", "widgets"]


_SHOWN_TEXT = 300
"""Characters of one name or text; a document's whole text would crowd out everything else."""
_SHOWN_ROWS = 400
"""Rows of a table: some 10,000 tokens."""
_FRAMES = {"filler", "panel", "redundant-object", "root-pane", "scroll-pane", "split-pane", "viewport"}
"""Roles that only hold others, unless they say something themselves."""
_VALUED = {"level-bar", "progress-bar", "slider", "spin-button"}
"""Roles whose value is what they show."""
_COORDINATES = re.compile(r"-?\d+")
_ENABLING = ("enabled", "sensitive")


@dataclass(frozen=True, slots=True)
class Widget:
    """Something on the screen."""

    role: str
    name: str
    text: str
    x: int
    """Of its left edge."""
    y: int
    """Of its upper edge."""
    width: int
    height: int
    states: frozenset[str]

    @property
    def middle(self) -> tuple[int, int]:
        """Where to click."""
        return self.x + self.width // 2, self.y + self.height // 2


def widgets(xml: str, screen: tuple[int, int]) -> list[Widget]:
    """Return what a person would see of a tree, in the tree's order.

    Raises:
        ValueError: this is no XML.
    """
    try:
        root = ET.fromstring(xml)  # noqa: S314 - expat refuses entity bombs, and the guest is the agent's own machine
    except ET.ParseError as error:
        raise ValueError(f"the guest's accessibility tree is no XML: {error}") from error
    return [widget for node in root.iter() if (widget := _widget(node)) is not None and _visible(widget, screen)]


def as_table(seen: Sequence[Widget], *, numbered: bool = False) -> str:
    """Return one line for each: role, name, text, middle and size, separated by tabs; numbered like marks if asked for."""
    head = "role\tname\ttext\tmiddle\tsize"
    lines = [f"mark\t{head}" if numbered else head]
    for number, widget in enumerate(seen[:_SHOWN_ROWS], 1):
        x, y = widget.middle
        text = f"{_short(widget.text)}{_notable(widget)}"
        row = f"{widget.role}\t{_short(widget.name)}\t{text}\t{x}, {y}\t{widget.width}x{widget.height}"
        lines.append(f"{number}\t{row}" if numbered else row)
    if len(seen) > _SHOWN_ROWS:
        lines.append(f"... and {len(seen) - _SHOWN_ROWS} more")
    return "\n".join(lines)


def _widget(node: ET.Element) -> Widget | None:
    facts = dict(_facts(node))
    corner, size = _pair(facts.get("component:screencoord")), _pair(facts.get("component:size"))
    if corner is None or size is None:
        return None
    states = frozenset(
        name.removeprefix("state:") for name, value in facts.items() if value == "true" and name.startswith("state:")
    )
    role, name, text = _local(node.tag), node.get("name", "").strip(), (node.text or "").strip()
    if role in _VALUED:
        text = text or facts.get("value:value", "")
    return Widget(role, name, "" if text == name else text, *corner, *size, states)


def _facts(node: ET.Element) -> Iterator[tuple[str, str]]:
    """Yield the attributes by the last word of their namespace, so that every system's trees are read alike."""
    for name, value in node.attrib.items():
        if name.startswith("{"):
            space, _, local = name[1:].partition("}")
            yield f"{space.rstrip('/').rsplit('/', 1)[-1]}:{local}", value


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _pair(text: str | None) -> tuple[int, int] | None:
    numbers = _COORDINATES.findall(text or "")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else None


def _visible(widget: Widget, screen: tuple[int, int]) -> bool:
    x, y = widget.middle
    if widget.width <= 0 or widget.height <= 0 or not (0 <= x < screen[0] and 0 <= y < screen[1]):
        return False
    if not {"showing", "visible"} <= widget.states:
        return False
    if widget.role in {"application", "desktop-frame"}:
        return False
    return bool(widget.name or widget.text) or (widget.role not in _FRAMES and "editable" in widget.states)


def _notable(widget: Widget) -> str:
    """Return the states that decide what to do next."""
    told: list[str] = [state for state in ("checked", "selected", "focused", "expanded") if state in widget.states]
    if not widget.states.intersection(_ENABLING) and widget.role != "label":
        told.append("disabled")
    return f" ({', '.join(told)})" if told else ""


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN_TEXT else f"{flat[: _SHOWN_TEXT - 1]}…"


_LOOK = 0.15
"""Seconds between two looks at the screen: twice in the blink of a text cursor."""
_NO_TREE = "The computer gives no accessibility tree."
_REACTION = 0.6
"""Seconds in which a program that reacts at all has begun to draw, also under emulation; without any change until then,
none is waited for."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A desktop at one moment."""

    screenshot: bytes
    """Always taken: it is kept, also when the agent is not shown it."""
    text: str = ""
    """The accessibility tree and the terminal, as far as they are shown."""
    images: tuple[bytes, ...] = ()
    """What the agent is shown."""
    marks: tuple[tuple[int, int], ...] = ()
    """The middles of numbered marks."""
    tree: str | None = None
    """The accessibility tree as XML, if it is shown in any form."""
    terminal: str | None = None
    """What the terminal has on its screen, if that is shown and there is one."""


class Observer:
    """Looks at a desktop in the way that was asked for.

    Args:
        controller: of the guest.
        kind: `screenshot`, `a11y_tree`, `screenshot_a11y_tree` or `som`.
        terminal: whether what the terminal shows is told, too.
        screen: its size.
    """

    def __init__(self, controller: Controller, kind: str, screen: tuple[int, int], *, terminal: bool = False) -> None:
        self._controller, self._kind, self._screen, self._terminal = controller, kind, screen, terminal
        self._last: bytes = b""
        self.film: Film | None = None
        """Where every picture goes that is taken here, if there is one."""

    async def picture(self) -> bytes:
        """Return the screen as it is."""
        picture = await self._controller.screenshot()
        if self.film is not None:
            self.film.add(picture)
        return picture

    async def quiet(self, limit: float, *, still: float = _LOOK, reaction: float = _REACTION) -> bytes:
        """Wait until the screen has stopped changing, at most `limit` seconds, and return it.

        Args:
            limit: seconds.
            still: for how long it must have stayed the same.
            reaction: for how long a change is waited for, where there is none yet.
        """
        clock = asyncio.get_running_loop().time
        before, began = self._last, clock()
        seen = await self.picture()
        since = began
        while (now := clock()) - began < limit:
            await asyncio.sleep(min(_LOOK, max(0.0, limit - (now - began))))
            following = await self.picture()
            if following != seen:
                seen, since = following, clock()
            elif clock() - since >= still and (seen != before or clock() - began >= reaction):
                break
        self._last = seen
        return seen

    async def look(self) -> None:
        """Remember the screen as it is, so that a change of it is seen."""
        self._last = await self.picture()

    async def observe(self, screenshot: bytes | None = None) -> Observation:
        """Look; `screenshot` is one that was taken just now."""
        picture = screenshot if screenshot is not None else await self.picture()
        self._last = picture
        parts: list[str] = []
        images: tuple[bytes, ...] = (picture,) if self._kind in {"screenshot", "screenshot_a11y_tree"} else ()
        marks: tuple[tuple[int, int], ...] = ()
        tree = terminal = None
        if self._kind != "screenshot":
            tree = await self._tree()
            seen = [] if tree is None else self._widgets(tree)
            parts.append(_NO_TREE if tree is None else as_table(seen, numbered=self._kind == "som"))
            if self._kind == "som":
                images = (await asyncio.to_thread(draw_marks, picture, seen),)
                marks = tuple(widget.middle for widget in seen)
        if self._terminal:
            with contextlib.suppress(GuestRefused):
                terminal = await self._controller.terminal()
        if terminal:
            parts.append(f"The terminal shows:\n{terminal}")
        return Observation(picture, "\n\n".join(parts), images, marks, tree, terminal)

    async def _tree(self) -> str | None:
        """Return the accessibility tree; None if the guest has none, for which its agent may be to blame."""
        try:
            return await self._controller.accessibility_tree()
        except GuestRefused:
            return None

    def _widgets(self, tree: str) -> list[Widget]:
        try:
            return widgets(tree, self._screen)
        except ValueError as error:
            raise EnvironmentFailed(str(error)) from error


_COLOURS = ("#d00000", "#0050d0", "#007a1c", "#9000a0", "#b05000")


def draw_marks(png: bytes, seen: Sequence[Widget]) -> bytes:
    """Return the picture with a frame around each widget and its number, counted from 1, at its upper left corner."""
    from PIL import Image, ImageDraw  # not at the top: only marked screenshots need the extra `osworld`

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    pen = ImageDraw.Draw(picture)
    for number, widget in enumerate(seen, 1):
        colour = _COLOURS[number % len(_COLOURS)]
        left, top = max(widget.x, 0), max(widget.y, 0)
        right = min(widget.x + widget.width, picture.width) - 1
        bottom = min(widget.y + widget.height, picture.height) - 1
        if right <= left or bottom <= top:
            continue
        pen.rectangle((left, top, right, bottom), outline=colour, width=1)
        x0, y0, x1, y1 = pen.textbbox((left + 1, top), str(number))
        pen.rectangle((x0 - 1, y0 - 1, x1 + 1, y1 + 1), fill=colour)
        pen.text((left + 1, top), str(number), fill="white")
    drawn = io.BytesIO()
    picture.save(drawn, "PNG")
    return drawn.getvalue()
