"""Plots of results as SVG: paragent against its peers, and measured values against fixed targets.

Every plot is a white card, so that it is readable on light and dark pages. Text is text, in the reader's system font. Colour is
never the only sign: a bar to the left means that the peer is better, and a missed target says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from bench.measure import Verdict
from bench.report import amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Result

__all__ = ["draw_comparisons", "draw_group"]

_WIDTH, _MARGIN = 760, 20
_LEFT, _RIGHT = 262, 472
"""Where bars begin and end, in pixels; beside them are a label and three columns of text."""
_MISS_COLUMN, _MIDDLE_COLUMN, _LAST_COLUMN = _RIGHT + 8, 606, _WIDTH - _MARGIN
_ROW, _THICK = 23, 12
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
_TEXT, _MUTED, _STROKE, _GRID = "#1f2430", "#4d5566", "#c3c8d4", "#e6e8ee"
_BETTER, _EQUAL, _WORSE = "#3b5bdb", "#9aa1b0", "#e08a1e"
"""Blue, grey and orange, which colour-blind readers can tell apart."""
_OURS, _MISS = "#253a9b", "#8a4300"
"""Darker blue and orange, for text."""
_SAME = 1.05
"""Ratios up to this factor are drawn as equal: medians of few samples differ by as much."""
_MOST = 2.0
"""How far a bar of a missed lower limit reaches at most, as a multiple of the limit."""
_CLOSE = 1.5
"""If all ratios are within this factor, the axis is linear and begins at 0; otherwise it is logarithmic."""


@dataclass(frozen=True, slots=True)
class _Bar:
    heading: tuple[str, str]
    """What is measured and paragent's value; bars with the same heading form a block. Empty: the bar stands alone."""
    label: str
    value: float
    middle: str
    last: str
    """The texts of the two columns at the right."""
    colour: str
    target: float | None = None
    missed: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    ticks: dict[float, str]
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value in pixels."""
        low, high, value = (math.log(n) if self.logarithmic else n for n in (self.low, self.high, value))
        return _LEFT + (_RIGHT - _LEFT) * (value - low) / (high - low)

    @property
    def origin(self) -> float:
        """The position where bars begin."""
        return self.at(1.0) if self.logarithmic else self.at(0.0)


def draw_comparisons(title: str, pairs: Sequence[tuple[Result, str]]) -> str:
    """Return the plot of chosen measurements, each with one of its peers."""
    bars = [bar for result, peer in pairs for bar in _peer_bars(result, [peer])]
    return _Card(title).peers(bars).svg() if bars else ""


def draw_group(title: str, results: Sequence[Result]) -> str:
    """Return the plot of a group of measurements, with all peers and all fixed targets; empty if there is nothing to draw."""
    peers = [bar for result in results for bar in _peer_bars(result, result.peers())]
    limits = [bar for result in results for bar in _limit_bars(result)]
    card = _Card(title)
    if len(results) > 1 and len({bar.label for bar in peers}) == 1:  # the same peer everywhere: one line for each bar
        card = _Card(f"{title} (peer: {peers[0].label})")
        peers = [replace(bar, heading=("", ""), label=bar.heading[0]) for bar in peers]
    if peers:
        card.peers(peers)
    if limits:
        card.limits(limits)
    return card.svg() if peers or limits else ""


def _peer_bars(result: Result, peers: Sequence[str]) -> list[_Bar]:
    """Return how many times better paragent is than each of these peers."""
    heading = (result.title, f"{amount(result.median(result.subject))} {result.unit}")
    bars = []
    for peer in peers:
        times = result.advantage(peer)
        if times is None:
            continue
        colour = _EQUAL if 1 / _SAME <= times <= _SAME else _BETTER if times > 1 else _WORSE
        bar = _Bar(heading, peer, times, f"{amount(times)} x", f"{amount(result.median(peer))} {result.unit}", colour)
        for target in result.targets:
            if target.times == peer:
                bound = target.bound if result.prefers_higher else 1 / target.bound
                bar = replace(bar, target=bound, missed=result.judge(target).verdict is Verdict.MISS)
        bars.append(bar)
    return bars


def _limit_bars(result: Result) -> list[_Bar]:
    """Return the part of its limit that a value reaches, for each target in the unit of the measurement."""
    bars = []
    for judgement in result.judgements():
        target, reached = judgement.target, judgement.reached
        if target.times or reached is None:
            continue
        missed = judgement.verdict is Verdict.MISS
        if target.direction == "at most":
            part = reached / target.bound
        else:
            part = min(target.bound / reached, _MOST) if reached else _MOST
        value, bound = f"{amount(reached)} {result.unit}", f"{target.direction} {amount(target.bound)}"
        bars.append(_Bar(("", ""), result.title, part, value, bound, _WORSE if missed else _BETTER, missed=missed))
    return bars


class _Card:
    """A plot that grows downwards, panel by panel."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._y = 34.0
        self._text(_MARGIN, title, size=17, weight=600)

    def peers(self, bars: Sequence[_Bar]) -> _Card:
        """Add bars of ratios: to the right paragent is better, to the left the peer."""
        self._y += 30
        self._legend([(_BETTER, "paragent is better"), (_EQUAL, "equal within 5 %"), (_WORSE, "the peer is better")])
        self._panel(bars, _ratio_axis(bars), ("ratio", "value" if bars[0].heading[0] else "peer"))
        return self

    def limits(self, bars: Sequence[_Bar]) -> _Card:
        """Add bars that end before the line if the target is met."""
        self._y += 34
        self._text(_MARGIN, "Fixed targets", weight=600)
        self._text(_LEFT, "a bar that ends before the line meets its target", colour=_MUTED)
        highest = max(1.0, *(bar.value for bar in bars))
        self._panel(bars, _Axis(0.0, highest, {0.0: "0", 1.0: "limit"}), ("measured", "target"))
        return self

    def svg(self) -> str:
        """Return the file."""
        height = self._y + 14
        size = f'width="{_WIDTH}" height="{height:.0f}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" {size} role="img"'
        text = f'font-family="{_FONT}" font-size="13"><title>{escape(self._title)}</title>'
        card = f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="10" fill="#fff" stroke="{_STROKE}"/>'
        return "\n".join([f"{head} {text}", card, *self._parts, "</svg>\n"])

    def _legend(self, colours: Sequence[tuple[str, str]]) -> None:
        x = float(_MARGIN)
        for colour, label in colours:
            self._rectangle(x, self._y - 10, 11, 11, colour)
            self._text(x + 17, label, colour=_MUTED)
            x += 160
        self._target(x + 4, self._y - 10)
        self._text(x + 14, "target", colour=_MUTED)

    def _panel(self, bars: Sequence[_Bar], axis: _Axis, columns: tuple[str, str]) -> None:
        self._y += 30
        for tick, label in axis.ticks.items():
            self._text(axis.at(tick), label, anchor="middle", size=12, colour=_MUTED)
        self._text(_MIDDLE_COLUMN, columns[0], anchor="end", size=12, colour=_MUTED)
        self._text(_LAST_COLUMN, columns[1], anchor="end", size=12, colour=_MUTED)
        top, first = self._y + 7, len(self._parts)
        heading = ("", "")
        for bar in bars:
            if bar.heading != heading:
                heading = bar.heading
                self._y += _ROW + 3
                self._text(_MARGIN, heading[0], weight=600)
                self._text(_MIDDLE_COLUMN, "paragent", anchor="end", colour=_OURS)
                self._text(_LAST_COLUMN, heading[1], anchor="end", colour=_OURS, weight=600)
            self._y += _ROW
            self._bar(bar, axis)
        bottom = self._y + 8
        lines = [_line(axis.at(tick), top, bottom, _MUTED if tick == 1 else _GRID) for tick in axis.ticks]
        self._parts[first:first] = lines  # below the bars
        self._y = bottom

    def _bar(self, bar: _Bar, axis: _Axis) -> None:
        top, end = self._y - _THICK + 1, axis.at(bar.value)
        self._text(_MARGIN + (12 if bar.heading[0] else 0), bar.label)
        self._rectangle(min(axis.origin, end), top, max(abs(end - axis.origin), 2), _THICK, bar.colour)
        if bar.target is not None:
            self._target(axis.at(bar.target), top)
        if bar.missed:
            self._text(_MISS_COLUMN, "miss", weight=600, colour=_MISS)
        self._text(_MIDDLE_COLUMN, bar.middle, weight=600, anchor="end", colour=_MISS if bar.missed else _TEXT)
        self._text(_LAST_COLUMN, bar.last, anchor="end", colour=_MUTED)

    def _rectangle(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="2" fill="{colour}"/>'
        )

    def _target(self, x: float, y: float) -> None:
        """Draw the mark of a target: a black line with a white edge, visible on bars and beside them."""
        path = f'd="M{x:.1f} {y - 3:.1f}v{_THICK + 6}"'
        self._parts.append(
            f'<path {path} stroke="#fff" stroke-width="4.5"/><path {path} stroke="{_TEXT}" stroke-width="2.2"/>'
        )

    def _text(
        self, x: float, text: str, *, size: int = 13, weight: int = 400, colour: str = _TEXT, anchor: str = "start"
    ) -> None:
        style = f'fill="{colour}"' + (f' font-weight="{weight}"' if weight != 400 else "")
        style += (f' font-size="{size}"' if size != 13 else "") + (
            f' text-anchor="{anchor}"' if anchor != "start" else ""
        )
        self._parts.append(f'<text x="{x:.1f}" y="{self._y:.1f}" {style}>{escape(text)}</text>')


def _line(x: float, top: float, bottom: float, colour: str) -> str:
    return f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}"/>'


def _ratio_axis(bars: Sequence[_Bar]) -> _Axis:
    values = [value for bar in bars for value in (bar.value, bar.target) if value]
    low, high = min(1.0, *values), max(1.0, *values)
    if low >= 1 / _CLOSE and high <= _CLOSE:
        return _Axis(0.0, high, {0.0: "0", 0.5: "0.5 x", 1.0: "1 x"})
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = {10.0**power: f"{10.0**power:g} x" for power in powers}
    if high / low < 20:  # powers of ten alone would leave the axis empty
        ticks |= {value: f"{value:g} x" for value in (0.5, 2.0, 5.0) if low <= value <= high}
    return _Axis(low, high, ticks, logarithmic=True)
