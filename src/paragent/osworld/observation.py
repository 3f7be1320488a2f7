"""Obs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import shutil
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.processes import plain_environment
from paragent.errors import EnvironmentFailed, MachineFailed, MissingProgram
from paragent.osworld.context import MachineRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paragent.osworld.controller import Controller

__all__ = ["Observation", "Observer", "Recording", "ScreenshotVideo", "Widget", "as_table", "draw_marks", "widgets"]

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
        self.film: ScreenshotVideo | None = None
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
            with contextlib.suppress(MachineRefused):
                terminal = await self._controller.terminal()
        if terminal:
            parts.append(f"The terminal shows:\n{terminal}")
        return Observation(picture, "\n\n".join(parts), images, marks, tree, terminal)

    async def _tree(self) -> str | None:
        """Return the accessibility tree; None if the guest has none, for which its agent may be to blame."""
        try:
            return await self._controller.accessibility_tree()
        except MachineRefused:
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


_LONGEST = 2.0
"""Seconds for which a picture is shown at most: nobody wants to watch a model think."""
_SECONDS = 25.0
"""For ffmpeg to finish, less than an environment has to close; it takes about one for a hundred pictures of 1920 x 1080."""
_EVEN = "pad=ceil(iw/2)*2:ceil(ih/2)*2,format=yuv420p"
"""Players want even sizes and this order of colours."""


class ScreenshotVideo:
    """Pictures of a screen in the order in which they were taken, each shown as long as it was there.

    Args:
        folder: an empty one of its own, which the caller removes.

    Raises:
        MissingProgram: there is no ffmpeg here.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("ffmpeg")
        if program is None:
            raise MissingProgram("making a film", "there is no ffmpeg here", "install the package `ffmpeg`")
        self._program = program
        self._folder = folder
        self._last = b""
        self._moments: list[float] = []

    def add(self, picture: bytes) -> None:
        """Append a picture, unless it is the same as the last one."""
        if picture != self._last:
            self._last = picture
            (self._folder / f"{len(self._moments)}.png").write_bytes(picture)
            self._moments.append(time.monotonic())

    async def develop(self) -> bytes | None:
        """Return the film as MP4; None if there is no picture, or ffmpeg cannot read one."""
        return await asyncio.to_thread(self._develop) if self._moments else None

    def _develop(self) -> bytes | None:
        ends = [*self._moments[1:], time.monotonic()]
        lines = ["ffconcat version 1.0"]
        for number, (begin, end) in enumerate(zip(self._moments, ends, strict=True)):
            lines += [f"file {number}.png", f"duration {min(end - begin, _LONGEST):.3f}"]
        lines.append(f"file {len(ends) - 1}.png")  # else the last one is not shown
        (self._folder / "order").write_text("\n".join(lines))
        target = self._folder / "film.mp4"
        reading = [self._program, "-v", "error", "-nostdin", "-y", "-f", "concat", "-i", "order"]
        writing = ["-vf", _EVEN, "-fps_mode", "vfr", "-preset", "veryfast", "-movflags", "faststart", target.name]
        try:
            done = subprocess.run(
                [*reading, *writing],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                env=plain_environment(),
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        return target.read_bytes() if done.returncode == 0 else None


_log = logging.getLogger(__name__)


class Recording:
    """One recording, from `start` to `stop`.

    A video is nothing that a score depends on: where none can be made, a warning says so.

    Args:
        task: whose it is, for warnings.
        controller: of the guest.
        observer: whose pictures make the film where the guest makes none.
        folder: for the pictures; the caller removes it.
    """

    def __init__(self, task: str, controller: Controller, observer: Observer, folder: Path) -> None:
        self._task, self._controller, self._observer, self._folder = task, controller, observer, folder
        self._in_guest = False
        self._film: ScreenshotVideo | None = None
        self._video: bytes | None = None

    async def start(self) -> None:
        """Begin, in the guest if it can."""
        try:
            await self._controller.start_recording()
            self._in_guest = True
        except MachineFailed as error:
            try:
                self._film = self._observer.film = ScreenshotVideo(Path(tempfile.mkdtemp(dir=self._folder)))
            except MissingProgram as missing:
                _log.warning("no recording of %s: %s; %s", self._task, error, missing)

    async def stop(self) -> None:
        """End it, if it has not ended; what happens on the machine from now on is not shown."""
        self._observer.film = None
        if self._in_guest:
            self._in_guest = False
            try:
                self._video = await self._controller.end_recording()
            except MachineFailed as error:
                _log.warning("the recording of %s is lost: %s", self._task, error)

    async def develop(self) -> bytes | None:
        """Return the video as MP4, after `stop`; None if there is none."""
        if self._film is not None:
            film, self._film = self._film, None
            self._video = await film.develop()
            if self._video is None:
                _log.warning("no recording of %s: ffmpeg made none of its pictures", self._task)
        return self._video
