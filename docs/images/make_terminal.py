"""Make a picture of a terminal, as SVG with real text: runs commands in a terminal of its own and draws what they print.

    pip install pyte
    python docs/images/make_terminal.py out.svg "paragent runs" "paragent show my-run"

`--seconds N` draws the screen N seconds after the start of the last command, and then interrupts that command, for pictures of
live displays. `--cut N` leaves out the first N lines.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyte

ROWS = 400
"""Rows of the terminal while commands run; unused ones are not drawn."""
FONT, WIDTH, HEIGHT, MARGIN, BAR = 14.5, 8.73, 17.5, 18, 34
"""Size of the font, of a character and of the picture's parts, in pixels."""
FOREGROUND, BACKGROUND = "#d6deeb", "#101a26"
COLORS = {
    "black": "#5c6773",
    "red": "#ff7b85",
    "green": "#7fd88f",
    "brown": "#e8c66a",
    "yellow": "#e8c66a",
    "blue": "#82aaff",
    "magenta": "#d49bf5",
    "cyan": "#7fdbe8",
    "white": "#f2f5f9",
}


def run(command: str, stream: pyte.ByteStream, columns: int, seconds: float | None) -> None:
    """Run a command in a terminal and feed its output to `stream`."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
    process = subprocess.Popen(
        ["bash", "-c", command],  # noqa: S607 - the shell of the person who makes the picture
        stdin=side,
        stdout=side,
        stderr=side,
        env=environment,
        start_new_session=True,
    )
    os.close(side)
    end = None if seconds is None else time.monotonic() + seconds
    drawing = True
    while True:
        if drawing and end is not None and time.monotonic() >= end:
            drawing = False
            os.killpg(process.pid, signal.SIGINT)
        if not select.select([main], [], [], 0.1)[0]:
            continue
        try:
            output = os.read(main, 65536)
        except OSError:  # the command has ended
            break
        if drawing:
            stream.feed(output)
    process.wait()
    os.close(main)


def color(name: str, default: str) -> str:
    """Return the color of a name or six hexadecimal digits of pyte."""
    if name == "default":
        return default
    return COLORS.get(name.removeprefix("bright"), f"#{name}")


def draw_line(characters: list[Any], y: float) -> str:
    """Return the text of one line, one element for each style. Spaces are no-break spaces, which browsers keep."""
    parts, column = [], 0
    for style, run_of in groupby(characters, key=lambda one: (one.fg, one.bg, one.bold, one.reverse)):
        text = "".join(one.data for one in run_of)
        foreground, background = color(style[0], FOREGROUND), color(style[1], "")
        if style[3]:
            foreground, background = background or BACKGROUND, foreground
        x, width = MARGIN + column * WIDTH, len(text) * WIDTH
        if background:
            parts.append(
                f'<rect x="{x:.1f}" y="{y - 14:.1f}" width="{width:.1f}" height="{HEIGHT}" fill="{background}"/>'
            )
        if text.strip():
            weight, shown = ' font-weight="bold"' if style[2] else "", escape(text.replace(" ", "\u00a0"))
            place = f'x="{x:.1f}" y="{y:.1f}" textLength="{width:.1f}"'
            parts.append(f'<text {place} fill="{foreground}"{weight}>{shown}</text>')
        column += len(text)
    return "".join(parts)


def draw(lines: list[list[Any]], columns: int, title: str) -> str:
    """Return the picture."""
    width, height = 2 * MARGIN + columns * WIDTH, BAR + len(lines) * HEIGHT + MARGIN
    body = "\n".join(draw_line(line, BAR + (number + 0.8) * HEIGHT) for number, line in enumerate(lines))
    dots = "".join(f'<circle cx="{MARGIN + 4 + 18 * n}" cy="17" r="5" fill="#3a4a5c"/>' for n in range(3))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">
<title>{escape(title)}</title>
<rect width="100%" height="100%" rx="9" fill="{BACKGROUND}"/>
{dots}
<text x="50%" y="21" text-anchor="middle" fill="#8fa1b3" font-family="sans-serif" font-size="12">{escape(title)}</text>
<g font-family="ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="{FONT}">
{body}
</g>
</svg>
"""


def main() -> None:
    """Read the arguments and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("commands", nargs="+")
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--cut", type=int, default=0)
    parser.add_argument("--title", default="paragent")
    options = parser.parse_args()
    screen = pyte.Screen(options.columns, ROWS)
    stream = pyte.ByteStream(screen)
    for number, command in enumerate(options.commands, 1):
        stream.feed(f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m\r\n".encode())
        run(command, stream, options.columns, options.seconds if number == len(options.commands) else None)
    lines = [[screen.buffer[row][column] for column in range(options.columns)] for row in range(ROWS)]
    lines = lines[options.cut :]
    while lines and not "".join(one.data for one in lines[-1]).strip():
        lines.pop()
    trimmed = []
    for line in lines:
        while line and not line[-1].data.strip() and line[-1].bg == "default" and not line[-1].reverse:
            line.pop()
        trimmed.append(line)
    options.output.write_text(draw(trimmed, options.columns, options.title))


if __name__ == "__main__":
    main()
