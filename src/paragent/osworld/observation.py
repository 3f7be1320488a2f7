"""Observations and recordings of a desktop: screenshots, the accessibility tree, numbered marks, videos."""

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

__all__ = [
    "DesktopObserver",
    "Observation",
    "ScreenRecording",
    "ScreenshotVideo",
    "Widget",
    "as_table",
    "draw_marks",
    "widgets",
]

_log = logging.getLogger(__name__)

_SHOWN_TEXT = 300
"""Characters shown of one name or text; the whole text of a document would leave no room for other widgets."""
_SHOWN_ROWS = 400
"""Rows of the table of widgets, about 10,000 tokens."""
_FRAMES = {"filler", "panel", "redundant-object", "root-pane", "scroll-pane", "split-pane", "viewport"}
"""Roles of containers; they are shown only if they have a name or text."""
_VALUED = {"level-bar", "progress-bar", "slider", "spin-button"}
"""Roles whose value is shown as their text."""
_COORDINATES = re.compile(r"-?\d+")
_ENABLING = ("enabled", "sensitive")
"""Widgets without any of these states are disabled."""


@dataclass(frozen=True, slots=True)
class Widget:
    """An element of the user interface."""

    role: str
    name: str
    text: str
    x: int
    """Left edge."""
    y: int
    """Top edge."""
    width: int
    height: int
    states: frozenset[str]

    @property
    def middle(self) -> tuple[int, int]:
        """The centre, where to click."""
        return self.x + self.width // 2, self.y + self.height // 2


def widgets(xml: str, screen: tuple[int, int]) -> list[Widget]:
    """Return the visible widgets of an accessibility tree, in the order of the tree.

    Raises:
        ValueError: the tree is not valid XML.
    """
    try:
        root = ET.fromstring(xml)  # noqa: S314 - expat rejects entity bombs, and the machine belongs to the agent
    except ET.ParseError as error:
        raise ValueError(f"the machine's accessibility tree is not valid XML: {error}") from error
    return [widget for node in root.iter() if (widget := _widget(node)) is not None and _visible(widget, screen)]


def as_table(seen: Sequence[Widget], *, numbered: bool = False) -> str:
    """Return one line for each widget: role, name, text, centre and size, tab-separated; numbered if requested."""
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
    """Yield the attributes by the last part of their namespace, so that the trees of all systems are read alike."""
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
    """Return the states that matter for the next action."""
    shown_states: list[str] = [
        state for state in ("checked", "selected", "focused", "expanded") if state in widget.states
    ]
    if not widget.states.intersection(_ENABLING) and widget.role != "label":
        shown_states.append("disabled")
    return f" ({', '.join(shown_states)})" if shown_states else ""


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN_TEXT else f"{flat[: _SHOWN_TEXT - 1]}…"


_INTERVAL = 0.15
"""Seconds between two screenshots: twice in the blink of a text cursor."""
_NO_TREE = "The computer gives no accessibility tree."
_REACTION = 0.6
"""Seconds in which a program that reacts begins to draw, even under emulation. If nothing changes in that time, no change is
expected.
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """A desktop at one moment."""

    screenshot: bytes
    """Always taken and kept, even if the agent is not shown it."""
    text: str = ""
    """The accessibility tree and the terminal, if they are shown."""
    images: tuple[bytes, ...] = ()
    """The images that the agent is shown."""
    marks: tuple[tuple[int, int], ...] = ()
    """The centres of the numbered marks."""
    tree: str | None = None
    """The accessibility tree as XML, if it is shown in any form."""
    terminal: str | None = None
    """The text of the terminal, if it is shown and there is one."""


class DesktopObserver:
    """Takes observations of a desktop.

    Args:
        controller: controls the machine.
        kind: `screenshot`, `a11y_tree`, `screenshot_a11y_tree` or `som`.
        screen: width and height.
        terminal: whether observations include the text of the terminal.
    """

    def __init__(self, controller: Controller, kind: str, screen: tuple[int, int], *, terminal: bool = False) -> None:
        self._controller, self._kind, self._screen, self._terminal = controller, kind, screen, terminal
        self._last: bytes = b""
        self.video: ScreenshotVideo | None = None
        """Receives every screenshot that is taken here, if set."""

    async def screenshot(self) -> bytes:
        """Take a screenshot."""
        screenshot = await self._controller.screenshot()
        if self.video is not None:
            self.video.add(screenshot)
        return screenshot

    async def wait_until_still(self, limit: float, *, still: float = _INTERVAL, reaction: float = _REACTION) -> bytes:
        """Wait until the screen stops changing, at most `limit` seconds, and return the last screenshot.

        Args:
            limit: seconds.
            still: how long the screen must not have changed.
            reaction: how long to wait for a first change.
        """
        clock = asyncio.get_running_loop().time
        before, began = self._last, clock()
        seen = await self.screenshot()
        since = began
        while (now := clock()) - began < limit:
            await asyncio.sleep(min(_INTERVAL, max(0.0, limit - (now - began))))
            following = await self.screenshot()
            if following != seen:
                seen, since = following, clock()
            elif clock() - since >= still and (seen != before or clock() - began >= reaction):
                break
        self._last = seen
        return seen

    async def remember_screen(self) -> None:
        """Remember the current screen, so that `wait_until_still` notices changes from now on."""
        self._last = await self.screenshot()

    async def observe(self, screenshot: bytes | None = None) -> Observation:
        """Return an observation; `screenshot` may be one that was taken just now."""
        screenshot = screenshot if screenshot is not None else await self.screenshot()
        self._last = screenshot
        parts: list[str] = []
        images: tuple[bytes, ...] = (screenshot,) if self._kind in {"screenshot", "screenshot_a11y_tree"} else ()
        marks: tuple[tuple[int, int], ...] = ()
        tree = terminal = None
        if self._kind != "screenshot":
            tree = await self._tree()
            seen = [] if tree is None else self._widgets(tree)
            parts.append(_NO_TREE if tree is None else as_table(seen, numbered=self._kind == "som"))
            if self._kind == "som":
                images = (await asyncio.to_thread(draw_marks, screenshot, seen),)
                marks = tuple(widget.middle for widget in seen)
        if self._terminal:
            with contextlib.suppress(MachineRefused):
                terminal = await self._controller.terminal()
        if terminal:
            parts.append(f"The terminal shows:\n{terminal}")
        return Observation(screenshot, "\n\n".join(parts), images, marks, tree, terminal)

    async def _tree(self) -> str | None:
        """Return the accessibility tree; None if the machine has none, which the agent may have caused."""
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
    """Return the screenshot with a frame around each widget and its number, beginning with 1, at the upper left corner."""
    from PIL import Image, ImageDraw  # only marked screenshots need the extra `osworld`

    screenshot = Image.open(io.BytesIO(png)).convert("RGB")
    pen = ImageDraw.Draw(screenshot)
    for number, widget in enumerate(seen, 1):
        colour = _COLOURS[number % len(_COLOURS)]
        left, top = max(widget.x, 0), max(widget.y, 0)
        right = min(widget.x + widget.width, screenshot.width) - 1
        bottom = min(widget.y + widget.height, screenshot.height) - 1
        if right <= left or bottom <= top:
            continue
        pen.rectangle((left, top, right, bottom), outline=colour, width=1)
        x0, y0, x1, y1 = pen.textbbox((left + 1, top), str(number))
        pen.rectangle((x0 - 1, y0 - 1, x1 + 1, y1 + 1), fill=colour)
        pen.text((left + 1, top), str(number), fill="white")
    drawn = io.BytesIO()
    screenshot.save(drawn, "PNG")
    return drawn.getvalue()


_LONGEST = 2.0
"""The longest time in seconds for which the video shows one screenshot, so that waiting for the model is shortened."""
_SECONDS = 25.0
"""Time limit of ffmpeg, shorter than that of closing an environment; 100 screenshots of 1920 x 1080 take about 1 s."""
_EVEN_SIZE = "pad=ceil(iw/2)*2:ceil(ih/2)*2,format=yuv420p"
"""Players need even sizes and this pixel format."""


class ScreenshotVideo:
    """A video made of screenshots, each shown for the time until the next one.

    Args:
        folder: an empty folder for the screenshots; the caller removes it.

    Raises:
        MissingProgram: ffmpeg is not installed.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("ffmpeg")
        if program is None:
            raise MissingProgram("making a video", "there is no ffmpeg here", "install the package `ffmpeg`")
        self._program = program
        self._folder = folder
        self._last = b""
        self._moments: list[float] = []

    def add(self, screenshot: bytes) -> None:
        """Append a screenshot, unless it equals the last one."""
        if screenshot != self._last:
            self._last = screenshot
            (self._folder / f"{len(self._moments)}.png").write_bytes(screenshot)
            self._moments.append(time.monotonic())

    async def encode(self) -> bytes | None:
        """Return the video as MP4; None if there are no screenshots, or ffmpeg fails."""
        return await asyncio.to_thread(self._encode) if self._moments else None

    def _encode(self) -> bytes | None:
        ends = [*self._moments[1:], time.monotonic()]
        lines = ["ffconcat version 1.0"]
        for number, (begin, end) in enumerate(zip(self._moments, ends, strict=True)):
            lines += [f"file {number}.png", f"duration {min(end - begin, _LONGEST):.3f}"]
        lines.append(f"file {len(ends) - 1}.png")  # ffmpeg ignores the duration of the last entry
        (self._folder / "order").write_text("\n".join(lines))
        target = self._folder / "video.mp4"
        reading = [self._program, "-v", "error", "-nostdin", "-y", "-f", "concat", "-i", "order"]
        writing = ["-vf", _EVEN_SIZE, "-fps_mode", "vfr", "-preset", "veryfast", "-movflags", "faststart", target.name]
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


class ScreenRecording:
    """The recording of one attempt, by the machine or, if the machine cannot record, made of screenshots.

    No score depends on the recording: if it cannot be made, a warning is logged.

    Args:
        task: the id of the task, for warnings.
        controller: controls the machine.
        observer: takes the screenshots.
        folder: for the screenshots; the caller removes it.
    """

    def __init__(self, task: str, controller: Controller, observer: DesktopObserver, folder: Path) -> None:
        self._task, self._controller, self._observer, self._folder = task, controller, observer, folder
        self._on_machine = False
        self._screenshots: ScreenshotVideo | None = None
        self._video: bytes | None = None

    async def start(self) -> None:
        """Start the recording, on the machine if possible."""
        try:
            await self._controller.start_recording()
            self._on_machine = True
        except MachineFailed as error:
            try:
                self._screenshots = self._observer.video = ScreenshotVideo(Path(tempfile.mkdtemp(dir=self._folder)))
            except MissingProgram as missing:
                _log.warning("no recording of %s: %s; %s", self._task, error, missing)

    async def stop(self) -> None:
        """Stop the recording if it runs. What happens on the machine from now on is not recorded."""
        self._observer.video = None
        if self._on_machine:
            self._on_machine = False
            try:
                self._video = await self._controller.end_recording()
            except MachineFailed as error:
                _log.warning("the recording of %s is lost: %s", self._task, error)

    async def encode(self) -> bytes | None:
        """Return the video as MP4, after `stop`; None if there is none."""
        if self._screenshots is not None:
            screenshots, self._screenshots = self._screenshots, None
            self._video = await screenshots.encode()
            if self._video is None:
                _log.warning("no recording of %s: ffmpeg could not encode the screenshots", self._task)
        return self._video
