"""Messages for files that a user names and that cannot be read or written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from paragent._internal.text import suggestion
from paragent._internal.tracebacks import message_of

__all__ = ["no_file", "os_problem", "reason_of", "unreadable", "unwritable"]

_CURES = {
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some space, or choose another folder",
    errno.EACCES: "choose another folder, or change its permissions",
    errno.EPERM: "choose another folder, or change its permissions",
    errno.EROFS: "choose a folder that is not read-only",
    errno.EEXIST: "choose a path without a file in the place of a folder",
    errno.ENOTDIR: "choose a path without a file in the place of a folder",
    errno.EISDIR: "choose the name of a file",
    errno.ENOENT: "choose a folder that can be created",
    errno.EMFILE: "raise the limit of open files with `ulimit -n 65536`",
}


def reason_of(error: BaseException) -> str:
    """Return the reason of an error on one line; without the number and the path that an `OSError` repeats."""
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return " ".join(message_of(error).split())


def no_file(path: Path) -> str:
    """Return what is wrong with a path that is not a file, and the file that may be meant."""
    if path.is_dir():
        return f"{path} is a folder; name a file in it"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}, so there is no file {path.name} in it; check the path"
    try:
        names = [one.name for one in os.scandir(path.parent) if one.is_file()]
    except OSError:
        names = []
    start = "" if path.is_absolute() else f"; relative paths start at {Path.cwd()}"
    return f"there is no file {path}{suggestion(path.name, names, _stem) or start}"


def _stem(name: str) -> str:
    """Return a file name without its suffix, which most files of a folder share."""
    return Path(name).stem


def unreadable(path: Path, error: BaseException) -> str:
    """Return why a file cannot be read."""
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return no_file(path)
    return f"{path} cannot be read: {reason_of(error)}"


def os_problem(error: OSError) -> str:
    """Return what an error of the operating system says, with the file and what to do, where that is known."""
    if error.filename is None:
        return message_of(error) or type(error).__name__
    return f"{error.filename}: {unwritable(error)}"


def unwritable(error: OSError) -> str:
    """Return why files cannot be written and what to do; without the path, which the caller names."""
    cure = _CURES.get(error.errno or 0)
    return f"{reason_of(error)}{f'; {cure}' if cure else ''}"
