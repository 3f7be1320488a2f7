"""The images that were built on this host."""

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
    "frozen_states",
    "image_folder",
    "images",
    "only_builder",
    "remove_image",
    "scratch_folder",
]

_PART = "-base"
"""How the name of an image ends that another is built from: it is kept so that this goes quickly, and cannot be booted."""


@dataclass(frozen=True, slots=True)
class Image:
    """A folder with a kernel and an initial file system, a disk, or both; `about.json` is written last."""

    name: str
    folder: Path
    key: str
    """What it was built from, as digests, and which build it is: two images with the same key are the same."""
    kernel: Path | None = None
    initrd: Path | None = None
    disk: Path | None = None
    arguments: str = ""
    """For the kernel."""
    memory_mib: int = 128
    """What a machine needs if nobody says how much it shall have."""
    graphics: bool = False
    """Whether it uses the emulated display."""

    @property
    def part_of(self) -> str | None:
        """The image that this one is only a step to; None if machines can be made from it."""
        return self.name.removesuffix(_PART) if self.name.endswith(_PART) else None

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
        """Make the folder an image."""
        about: dict[str, object] = {"name": self.name, "key": self.key, "arguments": self.arguments}
        about |= {"memory_mib": self.memory_mib, "graphics": self.graphics}
        for part in ("kernel", "initrd", "disk"):
            path: Path | None = getattr(self, part)
            if path is not None:
                about[part] = path.name
        (self.folder / "about.json").write_text(json.dumps(about))

    def publish(self, scratch: Path) -> Image:
        """Put a folder that was filled inside `scratch` where images are, in the place of an older one; return it."""
        self.write()
        final = image_folder(self.name)
        if final.exists():
            final.rename(scratch / f"older-{self.name}")
        self.folder.rename(final)
        built = Image.read(final)
        assert built is not None
        return built


def one_build(key: str) -> str:
    """Return the key of one build: two of the same recipe have other blocks, and what was frozen fits only one of them."""
    return f"{key}-{os.urandom(4).hex()}"


@contextmanager
def only_builder(name: str) -> Iterator[None]:
    """Wait until nobody else of this user builds the image `name`, and keep others waiting meanwhile."""
    with (cache_folder("images") / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Give a folder to build the image `name` in, which is removed; as is one that a killed builder left.

    Only who has `only_builder` may ask for it.
    """
    home, prefix = cache_folder("images"), f".building-{name}-"
    mounts = Path("/proc/self/mountinfo").read_text() if Path("/proc/self/mountinfo").exists() else ""
    for left in home.glob(f"{prefix}*"):
        if str(left) not in mounts:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=prefix) as folder:
        yield Path(folder)


def image_folder(name: str) -> Path:
    """Return where the image called `name` is or would be."""
    return cache_folder("images") / name


def images() -> list[Image]:
    """Return every complete image of this host, by name."""
    found = (Image.read(folder) for folder in sorted(cache_folder("images").iterdir()))
    return [image for image in found if image is not None]


def remove_image(name: str) -> None:
    """Remove an image and what was frozen from it; of a disk of the user's, only what was frozen.

    Raises:
        UsageError: there is none of that name.
    """
    known = {image.name: image.folder for image in images()}
    frozen = [state.folder for state in frozen_states() if state.image == name]
    if name not in known and not frozen:
        raise UsageError(f"there is no image {name!r}; there are: {', '.join(known) or 'none'}")
    parts = [known[part] for part in (name, name + _PART) if part in known]
    for folder in (*frozen, *parts):
        shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class FrozenState:
    """A machine that was booted from an image and frozen."""

    image: str
    folder: Path

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.iterdir())


def frozen_states() -> list[FrozenState]:
    """Return the frozen machines of this host."""
    found = []
    for about in sorted(cache_folder("golden").glob("[!.]*/about.json")):
        found.append(FrozenState(json.loads(about.read_text())["image"], about.parent))
    return found
