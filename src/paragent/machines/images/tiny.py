"""The image `tiny`: a Linux kernel, busybox, Python and our agent, built from Debian packages in seconds.

The system is in the initial file system, in memory. A disk with an empty file system is mounted at `/data`.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from pathlib import Path

from paragent.errors import MachineFailed, UsageError
from paragent.guest import agent
from paragent.machines.images.packages import (
    add_modules,
    first_match,
    make_disk,
    matching_dependency,
    unpack,
    versions,
    write_archive,
)
from paragent.machines.images.store import Image, build_key, build_lock, image_folder, scratch_folder

__all__ = ["build_tiny", "tiny_image"]

_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio-rng", "qemu_fw_cfg", "ext4", "crc32c_generic")
_LIBRARIES = ("libc6", "libexpat1", "zlib1g")
_ARGUMENTS = "quiet panic=-1 console=ttyS0 mitigations=off nokaslr tsc=nowatchdog no_timer_check"
_DISK = "512M"
"""Size of the disk; empty blocks take no space."""
_LEFT_OUT = ("test", "idlelib", "tkinter", "lib2to3", "ensurepip", "distutils", "pydoc_data", "unittest", "turtledemo")
"""Folders of Python's library that a machine without a user does not need."""
_INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /bin /sbin /usr/bin /usr/sbin /proc /sys /dev /tmp /run /root /data /etc
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
while read module; do insmod "/modules/$module"; done < /modules/order
hostname tiny
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
echo "nameserver 10.0.2.3" > /etc/resolv.conf
mount -t ext4 /dev/vda /data
export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
secret=/sys/firmware/qemu_fw_cfg/by_name/opt/paragent/secret/raw
cd /root
while true; do python3 -I /agent.py --folder /root --owns-machine --secret-file $secret; sleep 1; done
"""
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/hosts": "127.0.0.1 localhost tiny\n",
}


def tiny_image() -> Image:
    """Return the image, built if it is missing or outdated; raises as `build_tiny`."""
    if (image := Image.read(image_folder("tiny"))) and image.key.startswith(_recipe()):
        return image
    return build_tiny()


def build_tiny(*, fresh: bool = False) -> Image:
    """Build the image, unless there is one of the same packages and the same recipe.

    Args:
        fresh: build it in any case.

    Raises:
        UsageError: this host is not an x86-64 Linux with apt, or apt does not know the packages.
        MachineFailed: a package cannot be downloaded or unpacked.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise UsageError(
            f"the image tiny can be built on x86-64 Linux hosts, not on {platform.system()} on {platform.machine()}"
        )
    kernel = matching_dependency("linux-image-cloud-amd64", r"linux-image-\d.*-cloud-amd64")
    python = matching_dependency("python3-minimal", r"python3\.\d+-minimal").removesuffix("-minimal")
    packages = (
        kernel,
        "busybox-static",
        f"{python}-minimal",
        f"lib{python}-minimal",
        f"lib{python}-stdlib",
        *_LIBRARIES,
    )
    key = f"{_recipe()}-{hashlib.sha256(versions(packages).encode()).hexdigest()[:16]}"
    with build_lock("tiny"):
        present = Image.read(image_folder("tiny"))
        if present is not None and present.key.startswith(key) and not fresh:
            return present
        with scratch_folder("tiny") as scratch:
            return _build(scratch, packages, python, key)


def _recipe() -> str:
    """Return a digest of this file and of the agent: if it changes, the image is outdated."""
    own, guest = Path(__file__).read_bytes(), Path(agent.__file__).read_bytes()
    return hashlib.sha256(own + guest).hexdigest()[:16]


def _build(scratch: Path, packages: tuple[str, ...], python: str, key: str) -> Image:
    packed, root, result = scratch / "packed", scratch / "root", scratch / "image"
    for folder in (packed, root, result):
        folder.mkdir(mode=0o755)
    unpack(packages, packed, scratch / "downloads")
    _add_python(packed, root, python)
    add_modules(packed, root, _MODULES)
    _add_own_files(packed, root)
    with (result / "initrd").open("wb") as archive:
        write_archive(root, archive)
    shutil.copy(first_match(packed / "boot", "vmlinuz-*"), result / "kernel")
    make_disk(scratch / "raw", result / "disk", _DISK)
    files = (result / "kernel", result / "initrd", result / "disk")
    image = Image("tiny", result, build_key(key), *files, arguments=_ARGUMENTS)
    return image.publish(scratch)


def _add_python(packed: Path, root: Path, python: str) -> None:
    """Copy the interpreter, its libraries and compiled modules; compiling them in the machine takes many times as long."""
    library = packed / "usr/lib" / python
    for name in _LEFT_OUT:
        shutil.rmtree(library / name, ignore_errors=True)
    loader, libraries = first_match(packed, "lib*/ld-linux-x86-64.so.2"), first_match(packed, "lib/*-linux-gnu")
    interpreter = [str(loader), "--library-path", str(libraries), str(packed / "usr/bin" / python)]
    done = subprocess.run(
        [*interpreter, "-I", "-S", "-m", "compileall", "-q", "-b", "-s", str(packed), str(library)],
        env={"PYTHONHOME": str(packed / "usr")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise MachineFailed(f"the machine's Python cannot compile its library: {(done.stdout + done.stderr)[-500:]}")
    for source in library.rglob("*.py"):
        if source.with_suffix(".pyc").exists():
            source.unlink()
    shutil.copytree(library, root / "usr/lib" / python, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "usr/bin").mkdir()
    shutil.copy(packed / "usr/bin" / python, root / "usr/bin" / python)
    (root / "usr/bin/python3").symlink_to(python)
    _add_libraries(packed, root, loader)


def _add_libraries(packed: Path, root: Path, loader: Path) -> None:
    (root / "lib64").mkdir()
    shutil.copy(loader, root / "lib64/ld-linux-x86-64.so.2")
    home = root / "lib/x86_64-linux-gnu"
    home.mkdir(parents=True)
    for pattern in (
        "libc.so.6",
        "libm.so.6",
        "libexpat.so.1",
        "libz.so.1",
        "libdl.so.2",
        "libpthread.so.0",
        "libutil.so.1",
    ):
        for found in packed.rglob(pattern):
            shutil.copy(found, home / pattern, follow_symlinks=True)


def _add_own_files(packed: Path, root: Path) -> None:
    (root / "bin").mkdir()
    shutil.copy(first_match(packed, "bin/busybox"), root / "bin/busybox")
    for name, text in _FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "init").write_text(_INIT)
    (root / "init").chmod(0o755)
    shutil.copy(agent.__file__, root / "agent.py")
