"""PDF files, archives, e-books, HTML, MP3 tags, audio and video."""

from __future__ import annotations

import io
import itertools
import shutil
import subprocess
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

from PIL import Image

from bench.osworld_parity.cases.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def cases(folder: Path) -> Iterator[Case]:
    yield from _pdf(folder)
    yield from _archives(folder)
    yield from _books(folder)
    yield from _html(folder)
    yield from _tags(folder)
    if shutil.which("ffmpeg"):
        yield from _sounds_and_films(folder)


def _pdf_bytes(*pages: list[str]) -> bytes:
    """Return a PDF file with lines of text on its pages."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b""]
    kids = []
    for lines in pages:
        shown = "".join(f"({line}) Tj 0 -16 Td " for line in lines)
        stream = f"BT /F1 12 Tf 72 720 Td {shown} ET".encode("latin-1")
        number = len(objects) + 1
        kids.append(f"{number} 0 R")
        font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {number + 1} 0 R "
            f"/Resources << /Font << /F1 {font} >> >> >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    data = io.BytesIO(b"%PDF-1.4\n")
    data.seek(0, io.SEEK_END)
    places = []
    for number, body in enumerate(objects, 1):
        places.append(data.tell())
        data.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    table = data.tell()
    data.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for place in places:
        data.write(b"%010d 00000 n \n" % place)
    data.write(b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table))
    return data.getvalue()


_PDFS = {
    "one": _pdf_bytes(["Hello world", "a second line"]),
    "other": _pdf_bytes(["Hello word", "a second line"]),
    "long": _pdf_bytes([f"line {number} of many words" for number in range(30)], ["page two"]),
    "longer": _pdf_bytes([f"line {number} of several words" for number in range(30)], ["page two", "more"]),
    "empty": _pdf_bytes([]),
}


def _pdf(folder: Path) -> Iterator[Case]:
    paths: list[str | None] = [None, str(folder / "none.pdf")]
    for name, data in _PDFS.items():
        path = folder / f"{name}.pdf"
        path.write_bytes(data)
        paths.append(str(path))
    (folder / "broken.pdf").write_bytes(b"no document")
    paths.append(str(folder / "broken.pdf"))
    for colours in (["red"], ["blue"], ["red", "blue"], ["red", "red"]):
        path = folder / f"pictures_{'_'.join(colours)}.pdf"
        images = [_striped(colour) for colour in colours]
        images[0].save(path, save_all=True, append_images=images[1:])
        paths.append(str(path))
    for one, other in itertools.product(paths, paths[2:]):
        yield Case("compare_pdfs", [one, other])
        yield Case("compare_pdf_images", [one, other])
        yield Case("compare_pdfs", [[one, paths[2]], [other, paths[3]]])
    for one, relation, count in itertools.product(paths, ("eq", "lt", "ge"), (1, 2)):
        yield Case("check_pdf_pages", [one, {"relation": relation, "ref_value": count}])
    for pair in itertools.product(_pictures(folder), repeat=2):
        yield Case("compare_pdf_images", list(pair))


def _pictures(folder: Path) -> list[str]:
    """Return PDF files of two pictures in each kind of image that Pillow writes: palettes, grey, black and white, and others."""
    blocks = Image.frombytes("RGB", (8, 8), bytes(37 * number * number % 256 for number in range(192)))
    picture = blocks.resize((64, 64), Image.Resampling.NEAREST)
    paths = []
    for side, image in (("up", picture), ("turned", picture.rotate(90))):
        kinds = {f"palette{colours}": image.quantize(colours) for colours in (2, 4, 16, 200, 256)}
        kinds |= {f"colours{colours}": image.quantize(colours).convert("RGB") for colours in (2, 16, 256)}
        kinds |= {mode: image.convert(mode) for mode in ("1", "L", "LA", "RGB", "RGBA", "CMYK")}
        for name, kind in kinds.items():
            paths.append(str(folder / f"{side}_{name}.pdf"))
            kind.save(paths[-1])
    return paths


def _striped(colour: str) -> Image.Image:
    picture = Image.new("RGB", (64, 64), "white")
    step = 8 if colour == "red" else 24
    for left in range(0, 64, step):
        picture.paste(colour, (left, 0, left + step // 2, 64 if colour == "red" else 20))
    return picture


_TREES: dict[str, dict[str, bytes]] = {
    "base": {"a.txt": b"one\n", "b.txt": b"two\n"},
    "other": {"a.txt": b"one\n", "b.txt": b"three\n"},
    "case": {"a.txt": b"ONE\n", "b.txt": b"two\n"},
    "names": {"a.txt": b"one\n", "c.txt": b"two\n"},
    "folder": {"a.txt": b"one\n", "b.txt": b"two\n", "sub/c.txt": b"x"},
    "inside": {"sub/a.txt": b"one\n", "sub/b.txt": b"two\n"},
    "empty folder": {"a.txt": b"one\n", "b.txt": b"two\n", "void/": b""},
    "nothing": {},
    "pdf": {"a.pdf": _PDFS["one"], "b.pdf": _PDFS["long"]},
    "other pdf": {"a.pdf": _PDFS["other"], "b.pdf": _PDFS["long"]},
    "pdf and folder": {"a.pdf": _PDFS["one"], "b.pdf": _PDFS["long"], "more/c.pdf": _PDFS["one"]},
    "pdf inside": {"lecture_slides/a.pdf": _PDFS["one"]},
}


def _archives(folder: Path) -> Iterator[Case]:
    paths = {}
    for name, tree in _TREES.items():
        for kind in ("zip", "tar.gz"):
            path = folder / f"{name.replace(' ', '_')}.{kind}"
            _pack(path, tree, kind)
            paths[f"{name} {kind}"] = str(path)
    number = 0
    kinds: list[dict[str, Any]] = [
        {},
        {"file_type": "text", "ignore_case": True},
        {"file_type": "pdf"},
        {"file_path": "sub"},
    ]
    kinds += [{"file_path": "lecture_slides", "file_type": "pdf"}, {"file_type": "csv"}, {"file_type": "table"}]
    for one, other in itertools.product(paths.items(), paths.items()):
        if one[0].endswith("zip") and other[0].endswith("zip"):
            yield Case("compare_zip_files", [one[1], other[1]])
        if one[0].rpartition(" ")[2] != other[0].rpartition(" ")[2]:
            continue
        for options in kinds:
            # Each comparison has its own files, because OSWorld keeps unpacked files beside them.
            pair = []
            for side, original in (("p", one[1]), ("g", other[1])):
                copy = folder / f"c{number}{side}.{one[0].rpartition(' ')[2]}"
                shutil.copy(original, copy)
                pair.append(str(copy))
            number += 1
            yield Case("compare_archive", pair, options)
    odd = folder / "odd.dat"
    shutil.copy(paths["base zip"], odd)
    yield Case("compare_archive", [str(odd), str(odd)])
    yield Case("compare_archive", [None, paths["base zip"]])
    yield Case("compare_zip_files", [None, paths["base zip"]])
    yield Case("compare_zip_files", [paths["base tar.gz"], paths["base zip"]])


def _pack(path: Path, tree: dict[str, bytes], kind: str) -> None:
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as package:
            for name, data in tree.items():
                package.writestr(name, data)
        return
    with tarfile.open(path, "w:gz") as package:
        for name, data in tree.items():
            info = tarfile.TarInfo(name.rstrip("/"))
            info.size = len(data)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            package.addfile(info, io.BytesIO(data))


def _books(folder: Path) -> Iterator[Case]:
    page = "<html><body><p>one</p>\n<p>two</p></body></html>"
    contents = "<ncx>\n<navPoint id='1'/>\n<docTitle/>\n</ncx>"
    books = {
        "base": {"toc.ncx": contents, "content.opf": "<p>\n<dc:identifier>1</dc:identifier>\n</p>", "a.html": page},
        "identifier": {
            "toc.ncx": contents,
            "content.opf": "<p>\n<dc:identifier>2</dc:identifier>\n</p>",
            "a.html": page,
        },
        "text": {"toc.ncx": contents, "content.opf": "<p>\n</p>", "a.html": page.replace("two", "three")},
        "more": {"toc.ncx": contents, "content.opf": "<p>\n</p>", "a.html": page, "b.html": page},
        "pages only": {"a.html": page, "b.xhtml": page},
        "in folders": {"toc.ncx": contents, "text/a.html": page},
        "empty page": {"toc.ncx": contents, "a.html": ""},
        "empty": {},
    }
    paths: list[str | None] = [None]
    for name, tree in books.items():
        path = folder / f"{name.replace(' ', '_')}.epub"
        _pack(path, {part: text.encode() for part, text in tree.items()}, "zip")
        paths.append(str(path))
    (folder / "broken.epub").write_bytes(b"no book")
    paths.append(str(folder / "broken.epub"))
    for one, other in itertools.product(paths, paths[1:]):
        yield Case("compare_epub", [one, other])


def _html(folder: Path) -> Iterator[Case]:
    texts = [
        b"<html><body><table><tr><td sdnum='1'>1</td></tr></table></body></html>",
        b"<html><body><table><tr><td sdnum='2'>1</td></tr></table></body></html>",
        b"<html><body><table><tr><td>1</td></tr></table></body></html>",
        b"<html><body><table><tr><td class='x' sdnum='1'>1</td></tr></table></body></html>",
        b"<html><body><table><tr><td sdnum='1'>2</td></tr></table></body></html>",
        b"<html><body><table>\n<tr><td sdnum='1'>1</td></tr></table></body></html>",
        b"<html><body><table><tr><td sdnum='1'>1</td></tr></table><p>more</p></body></html>",
        b"<html><!-- c --><body><p>caf\xe9</p></body></html>",
        b"",
    ]
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.html"
        path.write_bytes(text)
        paths.append(str(path))
    for one, other, ignore in itertools.product(paths, paths, (None, True)):
        yield Case("compare_htmls", [one, other], {} if ignore is None else {"ignore_sdnum": ignore})


def _tags(folder: Path) -> Iterator[Case]:
    def size(count: int, bits: int) -> bytes:
        return bytes(count >> bits * place & (1 << bits) - 1 for place in (3, 2, 1, 0))

    def tagged(version: int, frames: dict[str, bytes]) -> bytes:
        if version == 2:
            body = b"".join(name.encode() + len(data).to_bytes(3, "big") + data for name, data in frames.items())
        else:
            bits = 7 if version == 4 else 8
            body = b"".join(name.encode() + size(len(data), bits) + b"\0\0" + data for name, data in frames.items())
        return b"ID3" + bytes([version, 0, 0]) + size(len(body), 7) + body

    sound = b"\xff\xfb\x90\x00" + bytes(400)
    old = b"TAG" + b"Song".ljust(30, b"\0") + b"Singer".ljust(30, b" ") + bytes(30) + b"2001" + bytes(31)
    files = [
        tagged(3, {"TIT2": b"\3Song", "TPE1": b"\0Singer"}) + sound,
        tagged(4, {"TIT2": b"\3Song", "TPE1": b"\3Singer\0Other", "TDRC": b"\0002001"}) + sound,
        tagged(3, {"TIT2": b"\1" + "Song".encode("utf-16"), "TYER": b"\0002001", "TALB": b"\0Album"}) + sound,
        tagged(2, {"TT2": b"\0Song", "TP1": b"\0Singer"}) + sound,
        sound + old,
        tagged(3, {"TALB": b"\0Album"}) + sound + old,
        tagged(3, {}) + sound,
        sound,
        b"",
        tagged(4, {"TIT2": b"\3" + "Lied ä".encode(), "TRCK": b"\0003/10", "TCON": b"\0Pop"}) + sound,
    ]
    rules = [
        {"title": {"method": "eq", "ref": "Song"}},
        {"title": {"method": "eq", "ref": "Song"}, "artist": {"method": "eq", "ref": "Singer"}},
        {"artist": {"method": "eq", "ref": "Singer,Other"}},
        {"artist": {"method": "eq", "ref": ""}},
        {"date": {"method": "re", "ref": "2001"}},
        {"album": {"method": "ne", "ref": "x"}},
        {"TITLE": {"method": "eq", "ref": "Song"}},
        {"nonsense": {"method": "eq", "ref": ""}},
        {"tracknumber": {"method": "eq", "ref": "3/10"}},
        {"genre": {"method": "eq", "ref": "Pop"}},
    ]
    for number, data in enumerate(files):
        path = folder / f"{number}.mp3"
        path.write_bytes(data)
        for rule in rules:
            yield Case("check_mp3_meta", [str(path), rule])
    yield Case("check_mp3_meta", [None, rules[0]])


def _sounds_and_films(folder: Path) -> Iterator[Case]:
    def made(name: str, *source: str) -> str:
        path = folder / name
        subprocess.run(["ffmpeg", "-v", "error", "-y", *source, str(path)], check=True, stdin=subprocess.DEVNULL)
        return str(path)

    sounds: list[str | None] = [
        made(f"{name}.wav", "-f", "lavfi", "-i", source, "-t", length)
        for name, source, length in (
            ("low", "sine=frequency=220", "2"),
            ("high", "sine=frequency=880", "2"),
            ("short", "sine=frequency=220", "1"),
            ("noise", "anoisesrc=seed=1", "2"),
            ("silence", "anullsrc", "1"),
        )
    ]
    (folder / "broken.wav").write_bytes(b"no sound")
    sounds += [str(folder / "broken.wav"), None]
    for one, other in itertools.product(sounds, sounds):
        yield Case("compare_audios", [one, other])
    films = [
        made(f"{name}.mp4", "-f", "lavfi", "-i", source, "-t", length, "-pix_fmt", "yuv420p")
        for name, source, length in (
            ("test", "testsrc=size=160x120:rate=10", "3"),
            ("shorter", "testsrc=size=160x120:rate=10", "2"),
            ("other", "mandelbrot=size=160x120:rate=10", "3"),
            ("larger", "testsrc=size=320x240:rate=10", "3"),
        )
    ]
    films += [str(folder / "broken.wav")]
    for one, other in itertools.product(films, films):
        yield Case("compare_videos", [one, other])
        yield Case("compare_videos", [one, other], {"max_frames_to_check": 10, "threshold": 20})
