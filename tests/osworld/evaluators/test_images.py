"""Pictures, drawn by Pillow; numbers beside them are those of the libraries that published scores used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance

from paragent.osworld.evaluators.metrics.images import difference, distance, similarity

Score = Callable[..., float]


def stripes(seed: int, width: int = 48, height: int = 64) -> Image.Image:
    values = np.add.outer(np.arange(height) * 3, np.arange(width) * 5) * seed % 256
    return Image.fromarray(values.astype(np.uint8))


def photo(size: tuple[int, int] = (64, 48)) -> Image.Image:
    picture = Image.new("RGB", size, (90, 120, 160))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((10, 8, 40, 38), fill=(170, 90, 70))
    draw.rectangle((42, 20, 60, 44), fill=(60, 110, 60))
    return picture


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., str]:
    def keep(name: str, picture: Image.Image) -> str:
        picture.save(tmp_path / name)
        return str(tmp_path / name)

    return keep


def test_the_structural_similarity_equals_scikit_image() -> None:
    assert similarity(stripes(1), stripes(2)) == pytest.approx(0.6173709278997783, abs=1e-12)
    assert similarity(stripes(1), stripes(1)) == pytest.approx(1)
    tall = stripes(1, 9, 700), stripes(3, 9, 700)  # several bands one way, a single one the other
    turned = [picture.transpose(Image.Transpose.TRANSPOSE) for picture in tall]
    assert similarity(*tall) == pytest.approx(similarity(*turned))


def test_similarity_needs_the_same_size_and_a_window() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        similarity(stripes(1), stripes(1, 50))
    with pytest.raises(ValueError, match="at least 7"):
        similarity(stripes(1, 6, 60), stripes(1, 6, 60))


def test_perceptual_hashes_equal_imagehash() -> None:
    assert distance(stripes(1), stripes(2)) == 22
    assert distance(photo(), photo()) == 0


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ((255, 0, 0), (0, 0, 255), 52.881399704556856),
        ((250, 10, 10), (255, 0, 0), 1.1989523605366714),
        ((0, 0, 0), (255, 255, 255), 100.00000017602524),
        ((12, 200, 34), (40, 190, 60), 3.6326815176085536),
        ((9, 9, 9), (9, 9, 9), 0),
    ],
)
def test_colours_differ_as_in_scikit_image(one: tuple[int, ...], other: tuple[int, ...], wanted: float) -> None:
    assert difference(one, other) == pytest.approx(wanted, abs=1e-9)


def test_only_the_score_above_the_unchanged_image_counts(score: Score, save: Callable[..., str]) -> None:
    found, gold = save("f.png", stripes(1)), save("g.png", stripes(2))
    alike = similarity(stripes(1), stripes(2))
    assert score("compare_images", found, gold) == pytest.approx(alike)
    assert score("compare_images", found, gold, reference_base_result=0.54) == pytest.approx((alike - 0.54) / 0.46)
    assert score("compare_images", found, gold, reference_base_result=0.615) == 0
    assert score("compare_images", save("h.png", photo().resize((32, 24))), save("i.png", photo())) > 0.8
    assert score("compare_images", None, gold) == 0


def test_lists_of_images(score: Score, save: Callable[..., str]) -> None:
    gold, same = save("g.png", photo()), save("f.png", photo())
    changed = photo()
    changed.putpixel((0, 0), (0, 0, 0))
    other = save("o.png", changed)
    assert score("compare_image_list", [same, same], [gold, gold]) == 1
    assert score("compare_image_list", [same, other], [gold, gold]) == 0
    assert score("compare_image_list", same, gold) == 1
    assert score("compare_image_list", [same, None], [gold, gold]) == 0


def test_structure(score: Score, save: Callable[..., str]) -> None:
    gold = save("g.png", photo())
    near = save("n.png", ImageEnhance.Brightness(photo()).enhance(1.02))
    small, far = save("s.png", photo().resize((32, 24))), save("o.png", stripes(1, 64, 48).convert("RGB"))
    for name in ("check_structure_sim", "check_file_exists_and_structure_sim"):
        assert score(name, near, gold) == 1
        assert score(name, far, gold) == 0
        assert score(name, small, gold) == 0
        assert score(name, None, gold) == 0
    assert score("check_structure_sim_with_threshold", small, gold, ssim_threshold=0.7) == 1
    assert score("check_structure_sim_with_threshold", far, gold) == 0
    framed = Image.new("RGBA", (100, 80), (0, 0, 0, 0))
    framed.paste(photo().resize((96, 72), Image.Resampling.NEAREST), (2, 4))
    assert score("check_structure_sim_resized", save("r.png", framed), gold) == 1
    assert score("check_structure_sim_resized", save("e.png", Image.new("RGBA", (9, 9), (0, 0, 0, 0))), gold) == 0
    assert score("check_palette_and_structure_sim", save("p.png", photo().quantize(16)), gold) == 1
    assert score("check_palette_and_structure_sim", gold, gold) == 0
    mirrored = photo().transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert score("check_image_mirror", save("m.png", mirrored), gold) == 1
    assert score("check_image_mirror", gold, gold) == 0


def test_edits_of_images(score: Score, save: Callable[..., str]) -> None:
    gold = save("g.png", photo())
    dark = save("d.png", ImageEnhance.Brightness(photo()).enhance(0.6))
    bright = save("b.png", ImageEnhance.Brightness(photo()).enhance(1.3))
    assert score("check_brightness_decrease_and_structure_sim", dark, gold) == 1
    assert score("check_brightness_decrease_and_structure_sim", bright, gold) == 0
    other = save("o.png", ImageEnhance.Brightness(stripes(7, 64, 48).convert("RGB")).enhance(0.3))
    assert score("check_brightness_decrease_and_structure_sim", other, gold) == 0
    assert score("check_brightness_decrease_and_structure_sim", other, gold, threshold=1.0) == 1
    strong = photo().convert("HSV").split()
    stronger = Image.merge(
        "HSV", (strong[0], strong[1].point(lambda value: min(255, int(value * 1.4))), strong[2])
    ).convert("RGB")
    assert score("check_saturation_increase_and_structure_sim", save("s.png", stronger), gold) == 1
    assert score("check_saturation_increase_and_structure_sim", gold, gold) == 0
    contrast = save("c.png", ImageEnhance.Contrast(photo()).enhance(1.5))
    assert score("check_contrast_increase_and_structure_sim", contrast, gold) == 1
    assert score("check_contrast_increase_and_structure_sim", gold, contrast) == 0


def test_sizes(score: Score, save: Callable[..., str]) -> None:
    path = save("f.png", photo())
    assert score("check_image_size", path, {"width": 64, "height": 48}) == 1
    assert score("check_image_size", path, {"height": 48}) == 1
    assert score("check_image_size", path, {"height": 47}) == 0
    framed = Image.new("RGBA", (100, 80), (0, 0, 0, 0))
    framed.paste(photo(), (2, 4))
    assert score("check_image_size", save("r.png", framed), {"height": 48, "ignore_transparent": True}) == 1
    assert score("check_image_size", save("r.png", framed), {"height": 80}) == 1
    assert score("check_image_file_size", path, {"max_size": 100_000}) == 1
    assert score("check_image_file_size", path, {"max_size": 10}) == 0
    assert score("check_image_size", None, {"height": 80}) == 0


def test_positions_in_images(score: Score, save: Callable[..., str]) -> None:
    def triangle(x: int) -> Image.Image:
        picture = Image.new("RGB", (100, 100), "white")
        draw = ImageDraw.Draw(picture)
        draw.rectangle((x, 40, x + 20, 60), fill="yellow")
        draw.point((0, 0), fill="black")
        return picture

    assert score("check_triangle_position", save("m.png", triangle(40))) == 1
    assert score("check_triangle_position", save("l.png", triangle(5))) == 0
    text = Image.new("RGB", (100, 50), "white")
    ImageDraw.Draw(text).rectangle((2, 10, 30, 20), fill="black")
    assert score("check_textbox_on_leftside", save("t.png", text)) == 1
    assert score("check_textbox_on_leftside", save("u.png", text.transpose(Image.Transpose.FLIP_LEFT_RIGHT))) == 0
    assert score("check_textbox_on_leftside", save("w.png", Image.new("RGB", (100, 50), "white"))) == 0
    mask, found = Image.new("RGB", (30, 30), "white"), Image.new("RGB", (30, 30), (10, 200, 20))
    ImageDraw.Draw(mask).rectangle((5, 5, 9, 9), fill="black")
    ImageDraw.Draw(found).rectangle((5, 5, 9, 9), fill="red")
    assert score("check_green_background", save("f.png", found), save("k.png", mask)) == 1
    found.putpixel((0, 29), (200, 10, 10))
    assert score("check_green_background", save("f.png", found), save("k.png", mask)) == 0
    wide = save("w.png", Image.new("RGB", (30, 20), (10, 200, 20)))
    assert score("check_green_background", wide, wide) == 0
    assert score("check_green_background", wide, wide, strict_evaluators=True) == 1


def test_small_images_are_compared_by_smaller_windows_with_a_threshold(score: Score, save: Callable[..., str]) -> None:
    small = save("s.png", Image.linear_gradient("L").resize((5, 6)).convert("RGB"))
    assert score("check_structure_sim_with_threshold", small, small) == 1
    assert score("check_structure_sim", small, small) == 0


def test_an_image_that_is_too_large_is_not_opened(score: Score, save: Callable[..., str]) -> None:
    huge = save("h.png", Image.new("1", (9_000, 8_000)))  # a few kilobytes as a file
    with pytest.raises(ValueError, match="too large"):
        score("compare_images", huge, huge)


def test_a_truncated_image_has_a_size(score: Score, save: Callable[..., str]) -> None:
    path = Path(save("c.png", Image.linear_gradient("L")))
    path.write_bytes(path.read_bytes()[:200])
    assert score("check_image_size", str(path), {"width": 256, "height": 256}) == 1
    assert score("check_image_size", str(path), {"width": 255}) == 0
