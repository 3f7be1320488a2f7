"""Programs of others that make machines: run without holding the loop, with a time limit, and an error that says what."""

from __future__ import annotations

import asyncio
import contextlib

from paragent._processes import bound_to_parent
from paragent.errors import MachineFailed
from paragent.vms.folders import find_program

__all__ = ["Tool"]

_KILL_SECONDS = 10.0


class Tool:
    """One program. `name` is looked for when it is first used, so that making a provider needs nothing installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def run(self, *arguments: str, timeout: float) -> str:
        """Run the program to its end and return what it printed.

        Raises:
            UsageError: it is not installed.
            MachineFailed: it failed, or took longer than `timeout` seconds.
        """
        command = bound_to_parent([find_program(self._name), *arguments])
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(timeout):
                output, _ = await process.communicate()
        except TimeoutError:
            raise MachineFailed(f"{self._name} {' '.join(arguments)} took longer than {timeout:.0f} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _KILL_SECONDS)
        text = output.decode(errors="replace")
        if process.returncode:
            raise MachineFailed(f"{self._name} {' '.join(arguments)} failed: {text.strip()[-500:]}")
        return text
