"""Calls confined to a folder: with Landlock and the audit hook, and with the audit hook alone."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paragent.subprocesses import CallFailed, SubprocessPool, confinement
from paragent.subprocesses.confinement import call_confined

HERE = f"{__name__}:"
HAS_LANDLOCK = ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1


def read(path: str) -> str:
    return Path(path).read_text()


def read_low(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    return os.read(descriptor, 100).decode()


def listing(path: str) -> list[str]:
    return [entry.name for entry in Path(path).iterdir()]


def write(path: str) -> None:
    Path(path).write_text("written")


def rename(path: str, target: str) -> None:
    Path(path).rename(target)


def read_by_program(path: str) -> str:
    return subprocess.run(["cat", path], capture_output=True, text=True, check=False, timeout=100).stdout


def end() -> None:
    os.kill(os.getpid(), 9)


def use_temporary_file() -> bool:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        return Path(file.name).exists()


@pytest.fixture(params=["all", "without Landlock"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param != "all":
        monkeypatch.setattr(confinement, "apply_landlock", lambda *_: None)
    (tmp_path / "secret").write_text("private")
    own = tmp_path / "own"
    own.mkdir()
    (own / "file").write_text("mine")
    (own / "link").symlink_to(tmp_path / "secret")
    return own


def called(name: str, *arguments: Any, folder: Path) -> dict[str, Any]:
    return call_confined(HERE + name, [str(argument) for argument in arguments], str(folder))


@pytest.mark.slow
def test_the_folder_can_be_read_and_written(folder: Path) -> None:
    assert called("read", folder / "file", folder=folder) == {"ok": True, "value": "mine"}
    assert called("read", "file", folder=folder) == {"ok": True, "value": "mine"}
    assert called("write", folder / "new", folder=folder)["ok"]
    assert (folder / "new").read_text() == "written"
    assert called("rename", folder / "new", folder / "newer", folder=folder)["ok"]
    assert sorted(called("listing", folder, folder=folder)["value"]) == ["file", "link", "newer"]
    assert called("use_temporary_file", folder=folder) == {"ok": True, "value": True}


@pytest.mark.slow
def test_other_files_cannot_be_read(folder: Path) -> None:
    for name in ("read", "read_low"):
        for path in (folder.parent / "secret", folder / "../secret", folder / "link", "/etc/passwd", "/proc/1/environ"):
            assert called(name, path, folder=folder)["type"] == "PermissionError", (name, path)
    assert called("listing", folder.parent, folder=folder)["type"] == "PermissionError"


def test_other_files_cannot_be_written(folder: Path) -> None:
    for path in (folder.parent / "new", folder / "link", Path(os.__file__)):
        before = path.read_bytes() if path.exists() else None
        assert called("write", path, folder=folder)["type"] == "PermissionError", path
        assert (path.read_bytes() if path.exists() else None) == before
    assert called("rename", folder / "file", folder.parent / "taken", folder=folder)["type"] in {
        "PermissionError",
        "OSError",
    }
    assert not (folder.parent / "taken").exists()


def test_the_calling_process_is_not_confined(folder: Path) -> None:
    called("read", folder / "file", folder=folder)
    assert (folder.parent / "secret").read_text() == "private"


def test_a_killed_process_is_reported_as_a_limit(folder: Path) -> None:
    assert called("end", folder=folder)["type"] == "limit"


def test_programs_are_confined_by_landlock(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("private")
    own = tmp_path / "own"
    own.mkdir()
    (own / "file").write_text("mine")
    assert called("read_by_program", own / "file", folder=own)["value"] == "mine"
    assert called("read_by_program", tmp_path / "secret", folder=own)["value"] == ("" if HAS_LANDLOCK else "private")


def test_a_pool_confines_each_call_to_its_own_folder(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)

    async def ask() -> list[str]:
        async with SubprocessPool.running(__name__, most=1) as pool:
            found = []
            for name in ("one", "other"):
                path = tmp_path / name
                found.append(await pool.call("read", str(path / "file"), limit=20, folder=path))
                with pytest.raises(CallFailed):
                    await pool.call("read", str(tmp_path / "one/../other/../secret"), limit=20, folder=path)
            with pytest.raises(CallFailed, match=r"Permission|outside"):
                await pool.call("read", str(tmp_path / "one" / "file"), limit=20, folder=tmp_path / "other")
            return found

    assert asyncio.run(ask()) == ["one", "other"]
