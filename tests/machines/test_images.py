"""Building blocks of images, without building a whole image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paragent import MachineFailed, UsageError
from paragent.guest.desktop.screen import pixmap_as_png
from paragent.machines.cleanup import cache_folder, find_program
from paragent.machines.images import Image, image_folder, images, remove_image
from paragent.machines.images.desktop import guest_digest, write_guest_files
from paragent.machines.images.packages import add_to_disk, candidates, make_disk, sources, versions
from paragent.machines.images.store import build_lock, scratch_folder


def debugfs(disk: Path, order: str) -> str:
    command = [find_program("debugfs"), "-R", order, str(disk)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def test_files_are_added_to_a_copy_of_a_file_system(tmp_path: Path) -> None:
    base, own = tmp_path / "base", tmp_path / "own"
    (own / "opt/inner").mkdir(parents=True)
    (own / "opt/program").write_text("#!/bin/sh\n")
    (own / "opt/program").chmod(0o755)
    (own / "opt/inner/with space").write_text("text")
    mke2fs = [find_program("mke2fs"), "-q", "-t", "ext4", str(base), "8M"]
    subprocess.run(mke2fs, check=True, capture_output=True, timeout=30)
    before = base.read_bytes()
    add_to_disk(base, tmp_path / "raw", own)
    assert base.read_bytes() == before
    assert debugfs(tmp_path / "raw", 'cat "/opt/inner/with space"') == "text"
    about = debugfs(tmp_path / "raw", "stat /opt/program")
    assert "Mode:  0755" in about
    assert "User:     0" in about
    make_disk(tmp_path / "raw", tmp_path / "disk.qcow2", "8M")
    assert (tmp_path / "disk.qcow2").read_bytes()[:4] == b"QFI\xfb"


def test_an_invalid_file_system_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"nothing" * 1000)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/file").write_text("x")
    with pytest.raises(MachineFailed, match="debugfs"):
        add_to_disk(tmp_path / "base", tmp_path / "raw", tmp_path / "own")


def test_the_guest_package_runs_alone(tmp_path: Path) -> None:
    write_guest_files(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pyautogui, paragent.guest.desktop.server as s;"
        "print(pyautogui.__name__, s.__file__, 'grpc' in sys.modules, 'pathlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[0] == "paragent.guest.desktop.pyautogui", done.stderr
    assert done.stdout.split()[1].startswith(str(tmp_path))
    assert done.stdout.split()[2:] == ["False", "False"]
    assert guest_digest() == guest_digest()


@pytest.mark.slow
def test_package_sources_of_this_host_are_used() -> None:
    lines = sources().splitlines()
    assert lines
    assert all(line.startswith("deb http") and len(line.split()) == 4 for line in lines)
    assert set(candidates(("python3", "no-such-package"))) == {"python3"}
    with pytest.raises(UsageError, match="no-such-package"):
        versions(("python3", "no-such-package"))


def test_folders_of_killed_builds_are_removed() -> None:
    left = cache_folder("images") / ".building-some-name-old"
    left.mkdir(exist_ok=True)
    with build_lock("some-name"), scratch_folder("some-name") as scratch:
        assert not left.exists()
        assert scratch.is_dir()
    assert not scratch.exists()
    (cache_folder("images") / ".some-name.lock").unlink()


def test_an_image_is_published_listed_and_removed() -> None:
    for _ in range(2):  # the second image replaces the first
        with scratch_folder("some-image") as scratch:
            for name in ("some-image", "some-image-base"):
                folder = scratch / name
                folder.mkdir()
                (folder / "disk").write_bytes(b"disk")
                Image(name, folder, "key", disk=folder / "disk", memory_mib=77, graphics=True).publish(scratch)
    found = Image.read(image_folder("some-image"))
    assert found is not None
    assert (found.key, found.memory_mib, found.graphics, found.kernel) == ("key", 77, True, None)
    assert "some-image" in {image.name for image in images()}
    remove_image("some-image")
    assert Image.read(image_folder("some-image")) is None
    assert Image.read(image_folder("some-image-base")) is None


def test_a_pixmap_is_converted_to_png() -> None:
    assert pixmap_as_png(b"P6\n2 1\n255\n" + bytes(6)).startswith(b"\x89PNG")
    for wrong in (b"", b"P5\n2 1\n255\n" + bytes(6), b"P6\n2 1\n65535\n" + bytes(12)):
        with pytest.raises(ValueError, match="pixmap"):
            pixmap_as_png(wrong)
