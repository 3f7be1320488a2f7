"""How different two colours look to people: CIEDE2000 (Sharma et al. 2005)."""

from __future__ import annotations

from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

__all__ = ["difference"]

_WHITE = (0.95047, 1.0, 1.08883)
"""Daylight (D65) for an observer of two degrees."""
_EPSILON, _KAPPA = 0.008856, 7.787
"""Where the cube root of CIELAB becomes a straight line, and how steep."""


def difference(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """Return the difference of two colours given as red, green, blue from 0 to 255; below about 2 nobody sees it."""
    (l1, a1, b1), (l2, a2, b2) = _lab(first), _lab(second)
    chroma = (hypot(a1, b1) + hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * sqrt(chroma**7 / (chroma**7 + 25.0**7))
    a1, a2 = a1 * stretch, a2 * stretch
    c1, c2 = hypot(a1, b1), hypot(a2, b2)
    h1, h2 = (degrees(atan2(b, a)) % 360 if a or b else 0.0 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    hue = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    light, c = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * cos(radians(hue - 30)) + 0.24 * cos(radians(2 * hue))
    t += 0.32 * cos(radians(3 * hue + 6)) - 0.20 * cos(radians(4 * hue - 63))
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * c)
    by_hue = 2 * sqrt(c1 * c2) * sin(radians(turn / 2)) / (1 + 0.015 * c * t)
    bend = 2 * sqrt(c**7 / (c**7 + 25.0**7)) * sin(radians(60 * exp(-(((hue - 275) / 25) ** 2))))
    return sqrt(by_light**2 + by_chroma**2 + by_hue**2 - bend * by_chroma * by_hue)


def _lab(colour: tuple[int, ...]) -> tuple[float, float, float]:
    red, green, blue = (_linear(part / 255) for part in colour)
    xyz = (
        0.412453 * red + 0.357580 * green + 0.180423 * blue,
        0.212671 * red + 0.715160 * green + 0.072169 * blue,
        0.019334 * red + 0.119193 * green + 0.950227 * blue,
    )
    x, y, z = (_root(value / white) for value, white in zip(xyz, _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _linear(part: float) -> float:
    return ((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92


def _root(value: float) -> float:
    return float(value ** (1 / 3)) if value > _EPSILON else _KAPPA * value + 16 / 116
