"""What a probe found, and the probes of programs and packages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import dataclass

from paragent._internal.processes import describe_exit
from paragent.cli.doctor.cures import missing_packages, user_extras
from paragent.errors import ParagentError, UsageError
from paragent.machines.cleanup import find_program

__all__ = ["PROGRAM_LIMIT", "Finding", "check_extra", "check_program", "program_output", "program_version"]

PROGRAM_LIMIT = 15.0
"""Seconds for a program to tell its version, or to run once. Beside eight other busy processes, Python took more than 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a probe found."""

    subject: str
    works: bool
    detail: str
    """A version or another fact; or what is wrong."""
    extras: tuple[str, ...] = ()
    """Extras of paragent that have to be installed."""
    programs: tuple[str, ...] = ()
    """Programs that have to be installed."""
    cure: str = ""
    """Another command, or what else to do."""


def program_output(*command: str) -> str:
    """Return what a program prints, to both streams.

    Raises:
        ParagentError: it failed.
        TimeoutExpired: it takes too long.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            text = process.communicate(timeout=PROGRAM_LIMIT)[0].strip()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # also what the program has started, which may hold the pipe
            raise
    if process.returncode:
        raise ParagentError(f"{command[0]} does not work: {text[-200:] or describe_exit(process.returncode)}")
    return text


def program_version(*command: str) -> str:
    """Return the first number with dots in the output of a program."""
    found = re.search(r"\d+(\.\d+)+", program_output(*command))
    return found[0] if found else "of an unknown version"


def check_program(subject: str, name: str, *version: str) -> Finding:
    """Return whether a program is installed.

    Args:
        subject: what it is called.
        name: the name of the program.
        version: the arguments with which it prints its version; without them it is not started.
    """
    try:
        path = find_program(name)
    except UsageError:
        return Finding(subject=subject, works=False, detail=f"{name} is not installed", programs=(name,))
    detail = f"{subject} {program_version(path, *version)}" if version else ""
    return Finding(subject=subject, works=True, detail=detail)


def check_extra(extra: str) -> Finding:
    """Return whether all packages of an extra are installed, and new enough."""
    requirements, subject = user_extras().get(extra), f"extra {extra}"
    if requirements is None:
        detail = f"the installed paragent has no extra {extra}"
        return Finding(subject=subject, works=False, detail=detail, extras=(extra,))
    if missing := missing_packages(requirements):
        detail = f"not installed: {', '.join(missing)}"
        return Finding(subject=subject, works=False, detail=detail, extras=(extra,))
    return Finding(subject=subject, works=True, detail="")
