"""The images of this host: stored, listed and removed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paragent.errors import UsageError
from paragent.machines.cleanup import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FrozenState",
    "Image",
    "build_key",
    "build_lock",
    "frozen_states",
    "image_folder",
    "images",
    "remove_image",
    "scratch_folder",
]

_BASE_SUFFIX = "-base"
"""Suffix of the name of an intermediate image: it is kept to make later builds fast, and cannot be booted."""


@dataclass(frozen=True, slots=True)
class Image:
    """A folder with a kernel and an initial file system, with a disk, or with both; `about.json` is written last."""

    name: str
    folder: Path
    key: str
    """Digests of what it was built from, and the id of the build. Images with the same key are identical."""
    kernel: Path | None = None
    initrd: Path | None = None
    disk: Path | None = None
    arguments: str = ""
    """The command line of the kernel."""
    memory_mib: int = 128
    """Default memory of a machine."""
    graphics: bool = False
    """Whether machines have an emulated display."""

    @property
    def part_of(self) -> str | None:
        """The name of the image for which this is an intermediate image; None if machines can be created from it."""
        return self.name.removesuffix(_BASE_SUFFIX) if self.name.endswith(_BASE_SUFFIX) else None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.rglob("*") if path.is_file())

    @classmethod
    def read(cls, folder: Path) -> Image | None:
        """Return the image in a folder, or None if it is not complete."""
        try:
            about = json.loads((folder / "about.json").read_text())
        except (OSError, ValueError):
            return None
        files = {part: folder / about[part] for part in ("kernel", "initrd", "disk") if about.get(part)}
        more = {part: about[part] for part in ("arguments", "memory_mib", "graphics") if part in about}
        return cls(about["name"], folder, about["key"], **files, **more)

    def write(self) -> None:
        """Write `about.json`, which makes the folder an image."""
        about: dict[str, object] = {"name": self.name, "key": self.key, "arguments": self.arguments}
        about |= {"memory_mib": self.memory_mib, "graphics": self.graphics}
        for part in ("kernel", "initrd", "disk"):
            path: Path | None = getattr(self, part)
            if path is not None:
                about[part] = path.name
        (self.folder / "about.json").write_text(json.dumps(about))

    def publish(self, scratch: Path) -> Image:
        """Move this image from `scratch` to the folder of images, replacing an older one, and return it."""
        self.write()
        final = image_folder(self.name)
        if final.exists():
            final.rename(scratch / f"older-{self.name}")
        self.folder.rename(final)
        built = Image.read(final)
        assert built is not None
        return built


def build_key(key: str) -> str:
    """Return the key of one build: builds of the same recipe have different blocks, and a golden state fits only one."""
    return f"{key}-{os.urandom(4).hex()}"


@contextmanager
def build_lock(name: str) -> Iterator[None]:
    """Hold the lock for building the image `name`; other processes of this user wait."""
    with (cache_folder("images") / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Yield a temporary folder for building the image `name`, and remove those of processes that were killed.

    The caller must hold `build_lock`.
    """
    home, prefix = cache_folder("images"), f".building-{name}-"
    mounts = Path("/proc/self/mountinfo").read_text() if Path("/proc/self/mountinfo").exists() else ""
    for left in home.glob(f"{prefix}*"):
        if str(left) not in mounts:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=prefix) as folder:
        yield Path(folder)


def image_folder(name: str) -> Path:
    """Return the folder of the image `name`, whether it exists or not."""
    return cache_folder("images") / name


def images() -> list[Image]:
    """Return all complete images of this host, sorted by name."""
    found = (Image.read(folder) for folder in sorted(cache_folder("images").iterdir()))
    return [image for image in found if image is not None]


def remove_image(name: str) -> None:
    """Remove an image and its golden states. For a disk of the user, remove only the golden states.

    Raises:
        UsageError: there is no image with this name.
    """
    known = {image.name: image.folder for image in images()}
    frozen = [state.folder for state in frozen_states() if state.image == name]
    if name not in known and not frozen:
        raise UsageError(f"there is no image {name!r}; images: {', '.join(known) or 'none'}")
    parts = [known[part] for part in (name, name + _BASE_SUFFIX) if part in known]
    for folder in (*frozen, *parts):
        shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class FrozenState:
    """A golden state: a machine that was booted from an image and frozen."""

    image: str
    folder: Path

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.iterdir())


def frozen_states() -> list[FrozenState]:
    """Return the golden states of this host."""
    found = []
    for about in sorted(cache_folder("golden").glob("[!.]*/about.json")):
        found.append(FrozenState(json.loads(about.read_text())["image"], about.parent))
    return found
