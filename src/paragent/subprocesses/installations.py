"""Which folders a program needs to run: its own installation, its interpreter, and its environment of Python."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "SYSTEM_FILES",
    "hidden_entries",
    "installation_folders",
    "is_broad",
    "own_python",
    "own_python_folders",
    "path_folders",
]

_SHEBANG_BYTES = 256
_MOST_LINKS = 16
SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/nix/store",
)
"""Files and folders outside of /usr that programs read and that have no secrets."""
_MOST_ENTRIES = 200_000
"""Files and folders among which hidden ones are searched. It takes about half a second."""
_MOST_HIDDEN = 500
"""Hidden files and folders. Each is a mount of the sandbox; 500 of them take about 0.3 s when it starts."""
_PACKAGES = frozenset({"node_modules", "site-packages", "dist-packages", "__pycache__"})
"""Folders of installed packages. Their hidden files are not the user's, and some are needed, such as `node_modules/.bin`."""

_BROAD = ("/", "/etc", "/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/var", "/var/tmp")  # noqa: S108 - they are not used


def installation_folders(program: str) -> list[str]:
    """Return the folders that a program needs, given its absolute path; those of the system are not included.

    Links are followed. A script needs its interpreter, and an environment of Python the installation that it was made
    from. The program `~/tools/bin/agent` needs `~/tools`; a program in `~/.cargo/bin` only that folder, because hidden folders
    in the home folder may contain secrets.
    """
    found: dict[str, None] = {}
    seen: set[str] = set()
    waiting = [program]
    while waiting:
        path = Path(waiting.pop())
        if str(path) in seen or len(seen) > _MOST_LINKS or not path.exists():
            continue
        seen.add(str(path))
        folder = _folder_of(path)
        found[str(folder)] = None
        waiting += [*_link(path), *_interpreter(path), *_base_python(folder)]
    if any(_same_folder(folder, sys.prefix) for folder in found):
        found |= dict.fromkeys(own_python_folders())
    return list(found)


def own_python() -> str:
    """Return the path of this process's Python without `..`, which leads through folders that a sandbox may not have."""
    return os.path.abspath(sys.executable)  # noqa: PTH100 - resolving links would leave the environment of Python


def own_python_folders() -> list[str]:
    """Return the folders of this process's Python and of the packages that it can import."""
    given = [sys.prefix, sys.base_prefix, *(path for path in sys.path if path)]
    absolute = map(os.path.abspath, given)
    return [path for path in dict.fromkeys(absolute) if not is_broad(path)]


def hidden_entries(folder: str, known: Sequence[str] = ()) -> list[str]:
    """Return the files and folders below a folder whose names begin with a dot: `.env`, `.git` and others may have secrets.

    Links are left out: their targets are hidden, visible or outside of the sandbox by themselves. So are installed packages.

    Args:
        folder: the folder.
        known: folders below it that are hidden anyway.

    Raises:
        ConfigError: there are too many files.
    """
    found: list[str] = []
    waiting, seen = [folder], 0
    for current in waiting:  # it grows: the upper levels come first
        with contextlib.suppress(OSError), os.scandir(current) as entries:
            for entry in entries:
                seen += 1
                if entry.is_symlink() or entry.path in known:
                    continue
                if entry.name.startswith("."):
                    found.append(entry.path)
                elif entry.is_dir() and entry.name not in _PACKAGES and not _is_environment(entry.path):
                    waiting.append(entry.path)
        if seen > _MOST_ENTRIES or len(found) > _MOST_HIDDEN:
            problem = f"{_MOST_ENTRIES:,} files" if seen > _MOST_ENTRIES else f"{_MOST_HIDDEN:,} hidden files"
            raise ConfigError(
                f"the agent in the sandbox can read {folder} except for hidden files, and the folder has more than {problem}: "
                "start the run in a smaller folder with the agent, or use --agent-in host"
            )
    return found


def _is_environment(folder: str) -> bool:
    """Return whether a folder is an environment of Python or conda."""
    return any(os.path.exists(f"{folder}/{name}") for name in ("pyvenv.cfg", "conda-meta"))  # noqa: PTH110 - plain strings


def path_folders() -> list[str]:
    """Return the folders of PATH, and the installations of those that belong to an environment of Python."""
    found: list[str] = []
    for folder in filter(None, os.environ.get("PATH", "").split(os.pathsep)):
        environment = Path(folder).parent / "pyvenv.cfg"
        found += installation_folders(f"{folder}/python") if environment.exists() else [folder]
    return [folder for folder in dict.fromkeys(found) if not is_broad(folder)]


def is_broad(path: str) -> bool:
    """Return whether a folder contains much that has nothing to do with one program: home folders, or everybody's files."""
    folder, home = Path(path).resolve(), Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - as below
    return home.is_relative_to(folder) or str(folder) in _BROAD


def _folder_of(path: Path) -> Path:
    """Return what to show for a program: its packages, the folder above its `bin`, just its own folder, or only its file."""
    for parent in path.parents:
        if parent.name == "node_modules":
            return parent
    folder = path.parent
    above = folder.parent
    if folder.name == "shims":  # scripts of pyenv and similar tools, which find the program in the folder above
        return above
    if folder.name in {"bin", "sbin"} and ((above / "pyvenv.cfg").exists() or not _has_other_data(above)):
        return above
    return path if is_broad(str(folder)) else folder


def _has_other_data(folder: Path) -> bool:
    """Return whether a folder may contain secrets: broad folders, and hidden folders in the home folder."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.expanduser raises for a user without a home
    return is_broad(str(folder)) or (folder.parent == home and folder.name.startswith("."))


def _link(path: Path) -> list[str]:
    """Return the target of a link."""
    if not path.is_symlink():
        return []
    return [os.path.normpath(path.parent / os.readlink(path))]  # noqa: PTH115 - a plain string


def _interpreter(path: Path) -> list[str]:
    """Return the interpreter of a script; for `/usr/bin/env NAME` also the program that PATH has for the name."""
    try:
        with path.open("rb") as file:
            first = file.read(_SHEBANG_BYTES).partition(b"\n")[0].decode(errors="replace")
    except OSError:
        return []
    words = shlex.split(first[2:]) if first.startswith("#!") else []
    named = words[2:3] if words[1:2] == ["-S"] else words[1:2]
    if words[:1] != ["/usr/bin/env"] or not named:
        return words[:1]
    return [words[0], *filter(None, [shutil.which(named[0])])]


def _base_python(folder: Path) -> list[str]:
    """Return the interpreter that an environment of Python was made from, and its link `python`."""
    try:
        lines = (folder / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    home = fields.get("home")
    return [str(folder / "bin/python"), *([f"{home}/python3"] if home else [])]


def _same_folder(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
