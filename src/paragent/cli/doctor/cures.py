"""Commands that install what is missing: extras with pip, programs with the package manager of this host."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import threading
from importlib import metadata
from typing import TYPE_CHECKING

from paragent.errors import ParagentError
from paragent.machines.cleanup import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["as_root", "install_programs", "known_to_apt", "missing_packages", "user_extras"]

_DEBIAN = PACKAGES | {
    "bwrap": "bubblewrap",
    "chromium": "chromium",
    "docker": "docker.io",
    "java": "openjdk-17-jre-headless",
}
"""The Debian packages of programs."""
_JAVA_PACKAGES = ("openjdk-21-jre-headless", "openjdk-17-jre-headless")
"""Each release of Debian and Ubuntu has one of them or both."""
_MANAGERS = {"apt-get": "install -y", "dnf": "install -y", "pacman": "-S --noconfirm"}
_RENAMED = {
    "dnf": {
        "docker.io": "moby-engine",
        "iproute2": "iproute",
        "openjdk-17-jre-headless": "java-21-openjdk-headless",
        "qemu-utils": "qemu-img",
        "virtualbox": "VirtualBox",
        "xvfb": "xorg-x11-server-Xvfb",
    },
    "pacman": {
        "dbus-daemon": "dbus",
        "docker.io": "docker",
        "openjdk-17-jre-headless": "jre21-openjdk-headless",
        "qemu-utils": "qemu-img",
        "xvfb": "xorg-server-xvfb",
    },
}
"""Packages that have other names with other package managers."""
_APT_LIMIT = 2.0
"""Seconds for apt to answer, which takes half of one."""
_FOR_DEVELOPERS = {"bench", "dev", "docs", "node"}
"""Extras for work on paragent itself."""


def as_root(command: str) -> str:
    """Return a command that runs as root."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def install_programs(programs: Iterable[str]) -> str:
    """Return the command that installs programs; for those that the package manager does not know, a sentence."""
    programs = sorted(set(programs))
    manager = next((name for name in _MANAGERS if shutil.which(name)), None)
    packages = {program: _package(program, manager) for program in programs}
    known = sorted({package for package in packages.values() if package})
    unknown = [program for program, package in packages.items() if not package]
    steps = []
    if manager == "apt-get" and known and not known_to_apt():  # as in new containers
        steps.append(as_root("apt-get update"))
    if manager is not None and known:
        steps.append(as_root(f"{manager} {_MANAGERS[manager]} {' '.join(known)}"))
    if unknown:
        steps.append(f"install {', '.join(unknown)}")
    return " && ".join(steps)


def _package(program: str, manager: str | None) -> str:
    """Return the package that has a program; empty if the package manager does not have it."""
    package = _DEBIAN.get(program, "")
    if manager is None:
        return ""
    if manager != "apt-get":
        return _RENAMED[manager].get(package, package)
    if known := known_to_apt():
        choices = _JAVA_PACKAGES if program == "java" else (package,)
        return next((name for name in choices if name in known), "")
    return package


@functools.cache
def known_to_apt() -> dict[str, str]:
    """Return those of the packages in this module that apt knows; empty if it has no package lists or does not answer."""
    from paragent.machines.images.packages import candidates

    found: dict[str, str] = {}

    def ask() -> None:
        with contextlib.suppress(ParagentError, OSError, subprocess.SubprocessError):
            found.update(candidates([*_DEBIAN.values(), *_JAVA_PACKAGES]))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_APT_LIMIT)
    return dict(found)


def user_extras() -> dict[str, list[str]]:
    """Return the extras of paragent, with the requirements of each, such as `ray>=2.40`."""
    try:
        requirements = metadata.requires("paragent") or []
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        requirements = []
    direct: dict[str, list[str]] = {}
    for requirement in requirements:
        text, _, marker = requirement.partition(";")
        if found := re.search(r"extra == ['\"]([^'\"]+)['\"]", marker):
            direct.setdefault(found[1], []).append(text.strip())
    return {extra: _expanded(extra, direct) for extra in direct if extra not in _FOR_DEVELOPERS}


def _expanded(extra: str, direct: dict[str, list[str]]) -> list[str]:
    """Return the requirements of an extra and of the extras that it includes."""
    found = []
    for text in direct.get(extra, []):
        if included := re.fullmatch(r"paragent\[([^\]]+)\]", text):
            found += [one for name in included[1].split(",") for one in _expanded(name.strip(), direct)]
        else:
            found.append(text)
    return found


def missing_packages(requirements: Iterable[str]) -> list[str]:
    """Return what is not installed or too old, as `ray` or `ray>=2.40 (2.10 is installed)`."""
    missing = []
    for text in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:>=\s*([0-9.]+))?", text)
        assert match is not None, text
        name, least = match[1], match[2]
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if least and _numbers(installed) < _numbers(least):
            missing.append(f"{name}>={least} ({installed} is installed)")
    return missing


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version, without zeros at the end."""
    numbers = []
    for part in version.split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        numbers.append(int(digits[0]))
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
