"""Images of several modes and sizes, with edits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from bench.osworld_parity.cases.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PAIRED = (
    *(
        "check_structure_sim",
        "check_file_exists_and_structure_sim",
        "check_structure_sim_resized",
    ),
    *(
        "check_structure_sim_with_threshold",
        "check_brightness_decrease_and_structure_sim",
    ),
    *(
        "check_contrast_increase_and_structure_sim",
        "check_palette_and_structure_sim",
    ),
    *(
        "check_saturation_increase_and_structure_sim",
        "check_image_mirror",
        "check_green_background",
    ),
    *(
        "compare_images",
        "compare_image_list",
    ),
)


def _base() -> Image.Image:
    x, y = np.meshgrid(np.arange(64), np.arange(48))
    pixels = np.stack([x * 4 % 256, y * 5 % 256, (x * y) % 256], axis=2).astype(np.uint8)
    return Image.fromarray(pixels)


def _pictures() -> dict[str, Image.Image]:
    base = _base()
    noise = np.random.default_rng(1).integers(-12, 13, (48, 64, 3))
    square = Image.new("RGB", (40, 40), (10, 200, 10))
    figure = Image.new("RGB", (40, 40), "white")
    ImageDraw.Draw(figure).polygon([(15, 25), (25, 25), (20, 14)], fill="yellow")
    corner = Image.new("RGB", (40, 40), "white")
    ImageDraw.Draw(corner).polygon([(0, 9), (9, 9), (5, 0)], fill="yellow")
    mask = Image.new("RGB", (40, 40), "white")
    ImageDraw.Draw(mask).rectangle([10, 10, 30, 30], fill="black")
    text = Image.new("RGB", (100, 30), "white")
    ImageDraw.Draw(text).rectangle([1, 5, 30, 20], fill="black")
    right = Image.new("RGB", (100, 30), "white")
    ImageDraw.Draw(right).rectangle([60, 5, 90, 20], fill="black")
    clear = base.convert("RGBA")
    clear.putalpha(0)
    framed = Image.new("RGBA", (84, 68), (0, 0, 0, 0))
    framed.paste(base, (10, 10))
    return {
        "base": base,
        "noisy": Image.fromarray(np.clip(np.asarray(base).astype(int) + noise, 0, 255).astype(np.uint8)),
        "darker": ImageEnhance.Brightness(base).enhance(0.6),
        "brighter": ImageEnhance.Brightness(base).enhance(1.3),
        "contrast": ImageEnhance.Contrast(base).enhance(1.4),
        "coloured": ImageEnhance.Color(base).enhance(1.6),
        "mirrored": ImageOps.mirror(base),
        "upside down": ImageOps.flip(base),
        "small": base.resize((32, 24)),
        "grey": base.convert("L"),
        "palette": base.convert("P", palette=Image.Palette.ADAPTIVE, colors=64),
        "alpha": base.convert("RGBA"),
        "clear": clear,
        "framed": framed,
        "grey alpha": base.convert("LA"),
        "black": Image.new("RGB", (64, 48), "black"),
        "white": Image.new("RGB", (64, 48), "white"),
        "tiny": base.resize((5, 5)),
        "narrow": base.resize((6, 20)),
        "dot": Image.new("RGB", (1, 1), "red"),
        "green": square,
        "figure": figure,
        "corner": corner,
        "mask": mask,
        "text": text,
        "right text": right,
        "one bit": base.convert("1"),
    }


def cases(folder: Path) -> Iterator[Case]:
    paths: dict[str, str | None] = {}
    for name, picture in _pictures().items():
        path = folder / f"{name.replace(' ', '_')}.png"
        picture.save(path)
        paths[name] = str(path)
    jpeg = folder / "base.jpg"
    _base().save(jpeg, quality=95)
    gif = folder / "base.gif"
    _base().convert("P").save(gif, transparency=0)
    (folder / "broken.png").write_bytes(b"\x89PNG no picture")
    data = (folder / "base.png").read_bytes()
    (folder / "cut.png").write_bytes(data[: len(data) // 2])
    paths |= {"jpeg": str(jpeg), "gif": str(gif), "broken": str(folder / "broken.png"), "cut": str(folder / "cut.png")}
    paths |= {"none": None}
    compared = [paths[name] for name in ("base", "grey", "alpha", "framed", "small", "mask", "tiny", "jpeg", "none")]
    for one, other in itertools.product(paths.values(), compared):
        for metric in _PAIRED:
            yield Case(metric, [one, other])
    for one in paths.values():
        yield from _single(one, str(paths["base"]))


def _single(path: str | None, base: str) -> Iterator[Case]:
    yield Case("check_triangle_position", [path])
    yield Case("check_textbox_on_leftside", [path])
    for size in (100, 100_000):
        yield Case("check_image_file_size", [path, {"max_size": size}])
    rules: list[dict[str, Any]] = [
        {"width": 64},
        {"height": 48},
        {"width": 64, "height": 48},
        {"width": 64, "height": 48, "ignore_transparent": True},
        {"height": None},
        {"width": 0, "ignore_transparent": True},
    ]
    for rule in rules:
        yield Case("check_image_size", [path, rule])
    for share in (0.11, 0.54, 0.9):
        yield Case("compare_images", [path, base], {"reference_base_result": share})
        yield Case("check_structure_sim_with_threshold", [path, base], {"ssim_threshold": share})
    yield Case("check_brightness_decrease_and_structure_sim", [path, base], {"threshold": 0.15})
    yield Case("compare_image_list", [[path, base], [base, base]])
