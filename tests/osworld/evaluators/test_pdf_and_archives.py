"""PDF files, written by hand and by Pillow, and archives."""

from __future__ import annotations

import contextlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from PIL import Image

from paragent.osworld.evaluators.supported import UnsupportedCheck

Score = Callable[..., float]
Make = Callable[..., str]


def pdf(*pages: str) -> bytes:
    """Return a small PDF file with one line of text on each page."""
    count = len(pages)
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(count))
    font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {count} >>"]
    for number, text in enumerate(pages):
        page = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Resources {font} /Contents {4 + 2 * number} 0 R >>"
        )
        stream = f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET"
        objects += [page, f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream"]
    data, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    start = len(data)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    return data + f"{head}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode()


def test_pages_are_counted(score: Score, write: Make) -> None:
    path = write("f.pdf", pdf("one", "two"))
    assert score("check_pdf_pages", path, {"relation": "eq", "ref_value": 2}) == 1
    assert score("check_pdf_pages", path, {"relation": "lt", "ref_value": 2}) == 0
    assert score("check_pdf_pages", None, {"relation": "eq", "ref_value": 2}) == 0


def test_texts_are_compared(score: Score, write: Make) -> None:
    gold = write("g.pdf", pdf("abcdefghij"))
    assert score("compare_pdfs", write("f.pdf", pdf("abcdefghij")), gold) == 1
    assert score("compare_pdfs", write("f.pdf", pdf("abcdefghix")), gold) == pytest.approx(0.9)
    assert score("compare_pdfs", None, gold) == 0
    assert score("compare_pdfs", write("f.pdf", b"no pdf"), gold) == 0
    assert score("compare_pdfs", [write("f.pdf", pdf("abcdefghij")), None], [gold, gold]) == 0.5


def test_images_are_compared(score: Score, tmp_path: Path, write: Make) -> None:
    def printed(name: str, *turns: int) -> str:
        ramp = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
        first, *rest = [ramp.rotate(turn) for turn in turns]
        first.save(tmp_path / name, save_all=True, append_images=rest)
        return str(tmp_path / name)

    gold = printed("g.pdf", 0, 90)
    assert score("compare_pdf_images", printed("f.pdf", 0, 90), gold) == 1
    assert score("compare_pdf_images", printed("f.pdf", 0, 0), gold) == 0.5
    assert score("compare_pdf_images", printed("f.pdf", 0), gold) == 0
    assert score("compare_pdf_images", write("t.pdf", pdf("a")), write("u.pdf", pdf("b"))) == 1


@pytest.mark.parametrize("colours", [2, 16, 256])
def test_images_with_a_palette_are_compared(score: Score, tmp_path: Path, colours: int) -> None:
    blocks = Image.frombytes("RGB", (8, 8), bytes(37 * number * number % 256 for number in range(192)))
    picture = blocks.resize((64, 64), Image.Resampling.NEAREST)

    def printed(name: str, image: Image.Image) -> str:
        image.save(tmp_path / name)
        return str(tmp_path / name)

    plain = printed("plain.pdf", picture.quantize(colours).convert("RGB"))
    assert b"/Indexed" not in (tmp_path / "plain.pdf").read_bytes()
    palette = printed("palette.pdf", picture.quantize(colours))
    assert b"/Indexed" in (tmp_path / "palette.pdf").read_bytes()
    other = printed("other.pdf", picture.rotate(90).quantize(colours))
    assert score("compare_pdf_images", palette, plain) == 1
    assert score("compare_pdf_images", other, plain) == 0
    assert score("compare_pdf_images", palette, other) == 0


@pytest.fixture
def zipped(tmp_path: Path) -> Make:
    def make(name: str, members: Mapping[str, bytes | str]) -> str:
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as package:
            for member, data in members.items():
                package.writestr(member, data)
        return str(tmp_path / name)

    return make


@pytest.fixture
def tarred(tmp_path: Path) -> Make:
    def make(name: str, members: Mapping[str, bytes]) -> str:
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            for member, data in members.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return str(tmp_path / name)

    return make


def test_zip_archives(score: Score, zipped: Make) -> None:
    gold = zipped("g.zip", {"a.txt": "x", "b.pdf": pdf("The same long line of text")})
    same = zipped("f.zip", {"b.pdf": pdf("The same long line of text") + b"\n", "a.txt": "x"})
    assert score("compare_zip_files", same, gold) == 1
    assert (
        score("compare_zip_files", zipped("f.zip", {"a.txt": "y", "b.pdf": pdf("The same long line of text")}), gold)
        == 0
    )
    assert score("compare_zip_files", zipped("f.zip", {"a.txt": "x", "b.pdf": pdf("Quite another thing")}), gold) == 0
    assert score("compare_zip_files", zipped("f.zip", {"a.txt": "x"}), gold) == 0
    assert score("compare_zip_files", None, gold) == 0


def test_archives_of_all_types_are_compared(score: Score, zipped: Make, tarred: Make) -> None:
    gold = tarred("g.tar.gz", {"a.pdf": pdf("abcdefghij"), "b.pdf": pdf("x")})
    found = zipped("f.zip", {"a.pdf": pdf("abcdefghiy"), "b.pdf": pdf("x")})
    assert score("compare_archive", found, gold, file_type="pdf") == pytest.approx(0.95)
    assert score("compare_archive", tarred("f.tar.gz", {"./a.pdf": pdf("x")}), gold, file_type="pdf") == 0
    inside = {"docs/a.txt": "x", "docs/b.txt": "y", "other.txt": "z"}
    gold = zipped("h.zip", inside)
    assert score("compare_archive", zipped("f.zip", inside | {"other.txt": "?"}), gold, file_path="docs") == 1
    assert score("compare_archive", zipped("f.zip", inside | {"docs/a.txt": "?"}), gold, file_path="docs") == 0.5
    with pytest.raises(FileNotFoundError):
        score("compare_archive", zipped("f.zip", inside), gold, file_path="nowhere")
    with_folder = zipped("f.zip", {"a.pdf": pdf("x"), "more/b.pdf": pdf("y")})
    assert score("compare_archive", with_folder, with_folder, file_type="pdf") == 0.5
    with pytest.raises(IsADirectoryError):
        score("compare_archive", gold, gold)
    with pytest.raises(ValueError, match="suffix of an archive"):
        score("compare_archive", zipped("f.dat", inside), gold, file_path="docs")
    with pytest.raises(UnsupportedCheck):
        score("compare_archive", gold, gold, file_type="recording")


def test_books(score: Score, zipped: Make) -> None:
    book = {
        "toc.ncx": "<ncx>\n<navPoint id='1'/>\n</ncx>",
        "content.opf": "<package>\n<dc:identifier>1</dc:identifier>\n</package>",
        "1.html": "<html><body><p>One</p>\n<p>Two</p></body></html>",
    }
    gold = zipped("g.epub", book)
    other_ids = book | {"toc.ncx": "<ncx>\n<navPoint id='2'/>\n</ncx>", "1.html": book["1.html"].replace("\n", "")}
    assert score("compare_epub", zipped("f.epub", other_ids), gold) == 1
    changed = zipped("f.epub", book | {"1.html": "<html><body><p>One</p><p>Three</p></body></html>"})
    assert 0.8 < score("compare_epub", changed, gold) < 1
    assert score("compare_epub", None, gold) == 0
    with pytest.raises(ValueError, match="pages in folders"):
        score("compare_epub", zipped("f.epub", {"text/1.html": book["1.html"]}), gold)


def test_pdf_text_is_read_by_pymupdf_if_installed(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Page:
        def get_text(self) -> str:
            return " as PyMuPDF reads it\n"

    class Library:
        @staticmethod
        @contextlib.contextmanager
        def open(path: str) -> Iterator[list[Page]]:
            yield [Page()] if path.endswith("one.pdf") else [Page(), Page()]

    monkeypatch.setattr("paragent.osworld.evaluators.metrics.archives._pymupdf", lambda: Library)
    for name in ("one.pdf", "two.pdf"):
        (tmp_path / name).write_bytes(pdf("x"))
    found = score("compare_pdfs", str(tmp_path / "one.pdf"), str(tmp_path / "two.pdf"))
    assert found == pytest.approx(2 * 19 / (19 + 40))


def test_a_missing_pdf_has_no_text(score: Score, tmp_path: Path) -> None:
    (tmp_path / "x.pdf").write_bytes(pdf("x"))
    (tmp_path / "empty.pdf").write_bytes(pdf(""))
    assert score("compare_pdfs", None, str(tmp_path / "x.pdf")) == 0
    assert score("compare_pdfs", None, str(tmp_path / "empty.pdf")) == 1


def test_a_recursive_pdf_ends(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "loop.pdf"
    path.write_bytes(pdf("x").replace(b"/Parent 2 0 R", b"/Parent 3 0 R"))
    assert score("compare_pdfs", str(path), str(path)) in (0, 1)
