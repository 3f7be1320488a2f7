"""Drawing of the diagrams in docs/concepts: boxes, regions and arrows as SVG, in one style.

The style: a white card that works on light and dark pages, the reader's system font, text of at least 13 px at a width of 760 px,
and two accent colours, blue and orange, that colour-blind readers can tell apart. Colour is never the only sign: boxes have
titles, and dashed lines are dashed. A text that is wider than its box is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

__all__ = ["BLUE", "GREY", "ORANGE", "PLAIN", "Box", "Colours", "Diagram"]

WIDTH = 760
SMALL, NORMAL = 13, 14.5
LINE = 18
"""Pixels between two lines of text."""
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
CODE_FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
TEXT, MUTED, STROKE = "#1f2430", "#4d5566", "#6b7385"
_WIDEST = {"plain": 0.585, "bold": 0.64, "code": 0.61}
"""The mean width of a character, in units of the size of the font; those of DejaVu Sans, which is wider than other fonts."""


@dataclass(frozen=True)
class Colours:
    """The colours of a box."""

    fill: str
    stroke: str
    title: str = TEXT


PLAIN = Colours("#ffffff", STROKE)
GREY = Colours("#f3f4f7", "#9aa1b0")
BLUE = Colours("#e8edff", "#3b5bdb", "#253a9b")
ORANGE = Colours("#fdf0e0", "#b3590a", "#8a4300")

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle, with the points at which arrows meet it."""

    x: float
    y: float
    width: float
    height: float

    def left(self, at: float = 0.5) -> Point:
        """Return a point of the left side; `at` is 0 at its top and 1 at its bottom."""
        return self.x, self.y + at * self.height

    def right(self, at: float = 0.5) -> Point:
        """Return a point of the right side."""
        return self.x + self.width, self.y + at * self.height

    def top(self, at: float = 0.5) -> Point:
        """Return a point of the upper side; `at` is 0 at its left and 1 at its right end."""
        return self.x + at * self.width, self.y

    def bottom(self, at: float = 0.5) -> Point:
        """Return a point of the lower side."""
        return self.x + at * self.width, self.y + self.height


class Diagram:
    """One SVG file.

    Args:
        name: the name of the file, without its ending.
        height: its height in pixels; the width is always `WIDTH`.
        title: what it shows, in a few words.
        description: the same in sentences, for readers who do not see it.
    """

    def __init__(self, name: str, height: float, title: str, description: str) -> None:
        self._name, self._height, self._title, self._description = name, height, title, description
        self._parts: list[str] = []
        self._labels: list[str] = []
        """Drawn last, above all lines."""

    def region(self, x: float, y: float, width: float, height: float, label: str, *, dashed: bool = False) -> Box:
        """Draw an area that contains other boxes, with a label at its upper left."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="#f8f9fb" stroke="#c3c8d4"{dash}/>'
        )
        self.text(x + 12, y + 20, label, colour=MUTED, weight="600", size=SMALL, room=width - 24)
        return Box(x, y, width, height)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        title: str,
        *lines: str,
        colours: Colours = PLAIN,
        code: bool = False,
    ) -> Box:
        """Draw a box with a title in bold and lines of text below it, centred. `code`: the title is code."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{colours.fill}" '
            f'stroke="{colours.stroke}" stroke-width="1.4"/>'
        )
        centre, room = x + width / 2, width - 12
        first = y + height / 2 - (len(lines) * LINE) / 2 + 5
        self.text(
            centre, first, title, colour=colours.title, weight="600", anchor="middle", room=room, code=code, size=NORMAL
        )
        for number, line in enumerate(lines, 1):
            self.text(centre, first + number * LINE, line, anchor="middle", room=room, colour=MUTED)
        return Box(x, y, width, height)

    def arrow(
        self,
        *points: Point,
        label: str = "",
        at: Point | None = None,
        anchor: str = "middle",
        colour: str = STROKE,
        dashed: bool = False,
        both: bool = False,
    ) -> None:
        """Draw an arrow along points, with round corners.

        Args:
            points: from the first to the last.
            label: a text; `\\n` begins a new line.
            at: where its first line is; None: above the middle of the first segment.
            anchor: `start`, `middle` or `end`: which part of the text is there.
            colour: of the line.
            dashed: draw a dashed line.
            both: draw a head at both ends.
        """
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        kind = {"#3b5bdb": "blue", "#b3590a": "orange"}.get(colour, "grey")
        heads = f' marker-end="url(#{kind})"' + (f' marker-start="url(#{kind})"' if both else "")
        self._parts.append(
            f'<path d="{_rounded(points)}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}{heads}/>'
        )
        if label:
            (x0, y0), (x1, y1) = points[0], points[1]
            x, y = at or ((x0 + x1) / 2, (y0 + y1) / 2 - 7)
            ink = {"#3b5bdb": BLUE.title, "#b3590a": ORANGE.title}.get(colour, TEXT)
            for number, line in enumerate(label.split("\n")):
                self.text(x, y + number * 16.5, line, anchor=anchor, colour=ink, above=True)

    def line(self, start: Point, end: Point, *, colour: str = STROKE, dashed: bool = False, width: float = 1.4) -> None:
        """Draw a line without heads."""
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(
            f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{colour}" stroke-width="{width}"{dash}/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colours: Colours, label: str = "") -> Box:
        """Draw a bar of a timeline."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{colours.fill}" stroke="{colours.stroke}"/>'
        )
        if label:
            self.text(x + width / 2, y + height / 2 + 4.5, label, anchor="middle", room=width - 6, colour=colours.title)
        return Box(x, y, width, height)

    def step(self, x: float, y: float, number: int) -> None:
        """Draw the number of a step, to which the text of the page refers."""
        self._labels.append(
            f'<circle cx="{x}" cy="{y}" r="10.5" fill="{BLUE.stroke}"/>'
            f'<text x="{x}" y="{y + 4.7}" font-size="{SMALL}" font-weight="600" fill="#ffffff" text-anchor="middle">'
            f"{number}</text>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = SMALL,
        weight: str = "400",
        anchor: str = "start",
        colour: str = TEXT,
        code: bool = False,
        room: float | None = None,
        above: bool = False,
    ) -> None:
        """Write one line of text; parts in backticks are code.

        Args:
            x: the position that `anchor` describes.
            y: the position of the base line.
            text: the text.
            size: in pixels.
            weight: of the font.
            anchor: `start`, `middle` or `end`.
            colour: of the text.
            code: use the font of code for all of it.
            room: the pixels that it may take; None: any number.
            above: draw it above all lines.

        Raises:
            ValueError: it is too wide.
        """
        parts = text.split("`")
        wide = sum(
            len(part) * size * _WIDEST["code" if code or number % 2 else "bold" if weight == "600" else "plain"]
            for number, part in enumerate(parts)
        )
        if room is not None and wide > room + 1:
            raise ValueError(f"{self._name}: {text!r} takes {wide:.0f} of {room:.0f} pixels")
        spans = "".join(
            f'<tspan font-family="{CODE_FONT}">{escape(part)}</tspan>' if number % 2 or code else escape(part)
            for number, part in enumerate(parts)
        )
        (self._labels if above else self._parts).append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" fill="{colour}" '
            f'text-anchor="{anchor}">{spans}</text>'
        )

    def save(self, folder: Path) -> None:
        """Write the file."""
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7.5" markerHeight="7.5" '
            f'orient="auto-start-reverse"><path d="M0 0.8 L9.5 5 L0 9.2 Z" fill="{colour}"/></marker>'
            for name, colour in {"grey": STROKE, "blue": BLUE.stroke, "orange": ORANGE.stroke}.items()
        )
        body = "\n".join([*self._parts, *self._labels])
        (folder / f"{self._name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height:g}" width="{WIDTH}" '
            f'height="{self._height:g}" '
            f'role="img" aria-labelledby="title description" font-family="{FONT}">\n'
            f'<title id="title">{escape(self._title)}</title>\n<desc id="description">{escape(self._description)}</desc>\n'
            f"<defs>{heads}</defs>\n"
            f'<rect width="{WIDTH}" height="{self._height:g}" rx="8" fill="#ffffff"/>\n{body}\n</svg>\n',
            encoding="utf-8",
        )


def _rounded(points: tuple[Point, ...], radius: float = 8.0) -> str:
    """Return the path through points, with round corners."""
    path = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        start, end = _towards(corner, before, radius), _towards(corner, after, radius)
        path.append(f"L{start[0]:g} {start[1]:g} Q{corner[0]:g} {corner[1]:g} {end[0]:g} {end[1]:g}")
    path.append(f"L{points[-1][0]:g} {points[-1][1]:g}")
    return " ".join(path)


def _towards(start: Point, end: Point, distance: float) -> Point:
    length = ((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5
    share = min(0.5, distance / length) if length else 0.0
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])
