"""The image `desktop`: a screen with applications, built from Debian packages in a minute or two.

mmdebstrap installs the packages from this host's own sources into a folder, and a shell script at its end creates a file system
image of the folder; both run as root or in a user namespace. Our code is written into a copy of that image. There is no systemd:
a short script mounts file systems and starts our agent, which starts the desktop.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from paragent import guest
from paragent._internal.processes import bound_to_parent
from paragent.errors import MachineFailed, UsageError
from paragent.machines.cleanup import find_program
from paragent.machines.images.packages import (
    add_modules,
    add_to_disk,
    candidates,
    first_match,
    make_disk,
    matching_dependency,
    sources,
    unpack,
    versions,
    write_archive,
)
from paragent.machines.images.store import Image, build_key, build_lock, image_folder, scratch_folder

__all__ = ["build_desktop", "desktop_image", "guest_digest", "write_guest_files"]


_HOME = Path(guest.__file__).parent
_PACKAGE = Path("paragent/guest")
_PYTHON_PATH = "python_path"


def _guest_files() -> dict[Path, Path]:
    """Return the files of the package `guest`: the path inside the machine and the path on this host."""
    found = {}
    for path in sorted(_HOME.rglob("*.py")):
        inner = path.relative_to(_HOME)
        found[Path(inner.name) if inner.parts[0] == _PYTHON_PATH else _PACKAGE / inner] = path
    return found


def guest_digest() -> str:
    """Return a digest of the files of the package `guest`."""
    parts = (f"{target} {source.read_text()}" for target, source in _guest_files().items())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_guest_files(folder: Path) -> None:
    """Write the files of the package `guest` to a folder that is in the path of the machine's Python."""
    for target, source in _guest_files().items():
        place = folder / target
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(source.read_bytes())
    (folder / _PACKAGE.parent / "__init__.py").write_text('"""paragent, inside a machine."""\n')


_PACKAGES = (
    "at-spi2-core",
    "dbus-x11",
    "fonts-dejavu-core",
    "galculator",
    "hsetroot",
    "iproute2",
    "libglib2.0-bin",
    "libxtst6",
    "lxterminal",
    "mount",
    "mousepad",
    "openbox",
    "procps",
    "python3",
    "python3-pil",
    "sudo",
    "thunar",
    "tint2",
    "wmctrl",
    "xclip",
    "xdotool",
    "xserver-xorg-core",
)
_OPTIONAL_PACKAGES = ("netsurf-gtk",)
"""A small browser, which some releases do not have."""
_EXCLUDED_FILES = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/help/*",
    "/usr/share/locale/*",
    "/usr/share/poppler/*",
    "/usr/share/ghostscript/*",
    "/usr/share/fonts/type1/*",
    "/usr/share/fonts/opentype/*",
    "/usr/lib/udev/hwdb.d/*",
    "/usr/lib/x86_64-linux-gnu/libLLVM*",
    "/usr/lib/x86_64-linux-gnu/libz3*",
    "/usr/lib/x86_64-linux-gnu/libgs.so*",
    "/usr/lib/x86_64-linux-gnu/dri/*",
)
"""Files that no application of the image needs: 3D drivers, printing, documentation; half of the size."""
_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio-rng", "qemu_fw_cfg", "ext4", "crc32c_generic", "bochs")
_ARGUMENTS = (
    "quiet panic=-1 console=ttyS0 mitigations=off nokaslr tsc=nowatchdog no_timer_check vt.global_cursor_default=0"
)
_BASE = "desktop-base"
"""The intermediate image with the packages and without our code; with it, a change of our code is built in seconds."""
_DISK = "3G"
"""Size of the disk; empty blocks take no space."""
_MEMORY_MIB = 1024
"""The desktop with its four applications uses 350; the rest is for programs that tasks open, and for the disk cache."""
_BUILD_SECONDS = 900.0
"""For mmdebstrap; it takes one minute with a fast mirror."""
_INITRD_SCRIPT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /disk
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
while read module; do /bin/busybox insmod "/modules/$module"; done < /modules/order
/bin/busybox mount -t ext4 -o noatime /dev/vda /disk
for folder in proc sys dev; do /bin/busybox mount -o move /$folder /disk/$folder; done
exec /bin/busybox switch_root /disk /opt/paragent/init
"""
_INIT = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 pts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/user/1000 && chown 1000:1000 /run/user/1000 && chmod 700 /run/user/1000
hostname desktop
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
secret=/sys/firmware/qemu_fw_cfg/by_name/opt/paragent/secret/raw
chmod 444 $secret
while true; do
    python3 -m paragent.guest.desktop --user user --folder /home/user --secret-file $secret \\
        --x-server "Xorg -ac -noreset -nolisten tcp -novtswitch -logfile /tmp/Xorg.log -config paragent.conf vt1" \\
        --application-seconds 200 --one-by-one
    sleep 1
done
"""
_XORG = """Section "ServerFlags"
    Option "AutoAddDevices" "false"
    Option "AllowEmptyInput" "true"
    Option "DontVTSwitch" "true"
    Option "BlankTime" "0"
    Option "StandbyTime" "0"
    Option "SuspendTime" "0"
    Option "OffTime" "0"
EndSection
Section "Extensions"
    Option "GLX" "Disable"
EndSection
Section "Device"
    Identifier "card"
    Driver "modesetting"
    Option "AccelMethod" "none"
    Option "ShadowFB" "true"
EndSection
"""
_FINISH = """set -eu
root="$1"
chroot "$root" useradd --create-home --shell /bin/bash --groups sudo user
echo 'user:password' | chroot "$root" chpasswd
ln -sf python3 "$root/usr/bin/python"
echo /opt/paragent/lib > "$root/usr/lib/python3/dist-packages/paragent.pth"
echo 'nameserver 10.0.2.3' > "$root/etc/resolv.conf"
echo desktop > "$root/etc/hostname"
echo '127.0.0.1 localhost desktop' > "$root/etc/hosts"
chroot "$root" fc-cache
rm -rf "$root"/var/cache/apt "$root"/var/cache/debconf "$root"/var/lib/apt/lists/* "$root"/var/log/*
unshare --mount sh -c 'for mounted in proc sys dev run; do umount -R -l "$1/$mounted" 2> /dev/null || true; done
exec mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1 -d "$1" "$RAW" "$SIZE"' sh "$root"
"""
"""The last step of mmdebstrap, which runs it as the root of the new system."""


def desktop_image() -> Image:
    """Return the image, built if it is missing or outdated; raises as `build_desktop`."""
    if (image := Image.read(image_folder("desktop"))) and image.key.startswith(_recipe()):
        return image
    return build_desktop()


def build_desktop(*, fresh: bool = False) -> Image:
    """Build the image, unless there is one of the same packages, the same recipe and the same code.

    Args:
        fresh: build it in any case.

    Raises:
        UsageError: this host is not an x86-64 Linux with apt and mmdebstrap, or apt does not know the packages.
        MachineFailed: a package cannot be installed.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise UsageError(
            f"the image desktop can be built on x86-64 Linux hosts, not on {platform.system()} on {platform.machine()}"
        )
    for program in ("mmdebstrap", "mke2fs", "debugfs", "qemu-img"):
        find_program(program)
    kernel = matching_dependency("linux-image-amd64", r"linux-image-\d.*-amd64")
    packages = (*_PACKAGES, *candidates(_OPTIONAL_PACKAGES))
    known = versions((kernel, "busybox-static", *packages))
    base_key = hashlib.sha256(f"{known} {_EXCLUDED_FILES} {_MODULES} {_INITRD_SCRIPT} {_FINISH}".encode()).hexdigest()[
        :16
    ]
    key = f"{_recipe()}-{base_key}"
    with build_lock("desktop"):
        present = Image.read(image_folder("desktop"))
        if present is not None and present.key.startswith(key) and not fresh:
            return present
        with scratch_folder("desktop") as scratch:
            base = Image.read(image_folder(_BASE))
            if base is None or base.key != base_key or fresh:
                base = _build_base(scratch, kernel, packages, base_key)
            return _build(scratch, base, key)


def _recipe() -> str:
    """Return a digest of this file and of the package `guest`: if it changes, the image is outdated."""
    return hashlib.sha256(Path(__file__).read_bytes() + guest_digest().encode()).hexdigest()[:16]


def _build_base(scratch: Path, kernel: str, packages: tuple[str, ...], key: str) -> Image:
    """Install the packages, which takes long and does not depend on our code."""
    packed, first, result = (scratch / name for name in ("packed", "first", "base"))
    for folder in (packed, first, result):
        folder.mkdir(mode=0o755)
    _install(packages, scratch, result / "raw")
    unpack((kernel, "busybox-static"), packed, scratch / "downloads")
    _fill_initrd(packed, first)
    with (result / "initrd").open("wb") as archive:
        write_archive(first, archive)
    shutil.copy(first_match(packed / "boot", "vmlinuz-*"), result / "kernel")
    return Image(_BASE, result, key, result / "kernel", result / "initrd", result / "raw").publish(scratch)


def _build(scratch: Path, base: Image, key: str) -> Image:
    """Add our code."""
    own, result = scratch / "own", scratch / "image"
    for folder in (own, result):
        folder.mkdir(mode=0o755)
    assert base.disk is not None
    assert base.kernel is not None
    assert base.initrd is not None
    write_guest_files(own / "opt/paragent/lib")
    for name, text in {"opt/paragent/init": _INIT, "etc/X11/paragent.conf": _XORG}.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    (own / "opt/paragent/init").chmod(0o755)
    add_to_disk(base.disk, scratch / "raw", own)
    make_disk(scratch / "raw", result / "disk.qcow2", _DISK)
    for path in (base.kernel, base.initrd):
        shutil.copy(path, result / path.name)
    files = (result / "kernel", result / "initrd", result / "disk.qcow2")
    image = Image(
        "desktop", result, build_key(key), *files, arguments=_ARGUMENTS, memory_mib=_MEMORY_MIB, graphics=True
    )
    return image.publish(scratch)


def _install(packages: tuple[str, ...], scratch: Path, raw: Path) -> None:
    finish = scratch / "finish.sh"
    finish.write_text(_FINISH)
    command = [find_program("mmdebstrap"), "--variant=essential", "--format=null"]
    command += ['--aptopt=APT::Install-Recommends "0"', '--aptopt=Acquire::Languages "none"']
    # Only this user can enter the folder, not the user of apt.
    command += ['--aptopt=APT::Sandbox::User "root"']
    command += ["--dpkgopt=force-unsafe-io", *(f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED_FILES)]
    command += [f"--include={','.join(packages)}", f'--customize-hook=sh {finish} "$1"', "", "/dev/null", "-"]
    if os.geteuid() == 0:
        # Its mounts and processes must end with it, even if it is killed.
        alone = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [find_program("unshare"), *alone, "--", *command]
    own_path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    done = subprocess.run(
        bound_to_parent(command),
        input=sources(),
        env=os.environ | {"RAW": str(raw), "SIZE": _DISK, "TMPDIR": str(scratch), "PATH": own_path},
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise MachineFailed(f"mmdebstrap failed: {done.stderr.strip()[-1000:]}")


def _fill_initrd(packed: Path, first: Path) -> None:
    """Fill the initial file system, which loads the kernel modules and continues from the disk."""
    (first / "bin").mkdir()
    shutil.copy(first_match(packed, "bin/busybox"), first / "bin/busybox")
    add_modules(packed, first, _MODULES)
    (first / "init").write_text(_INITRD_SCRIPT)
    (first / "init").chmod(0o755)
