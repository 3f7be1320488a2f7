"""How a machine changes hands: verified to be clean before it is free, given to one holder by a token.

Guests with our agent are asked directly. A guest that only speaks OSWorld's protocol gets its marker by a command, and is
told no token: there the machine's address, which a reset changes or restarts, is what keeps an old holder away.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from paragent.errors import MachineFailed
from paragent.vms.guest_http import as_json, ask_async, checked
from paragent.vms.machine import Machine

if TYPE_CHECKING:
    from paragent.vms.ledger import LeaseRecord
    from paragent.vms.providers.base import Instance

__all__ = ["adopt", "verify_clean"]

_SECONDS = 20.0
"""For one answer of a guest that is known to be up; a busy host under emulation takes up to some seconds."""
_NOT_FOUND = 404
_MARKER = ".paragent-marker"
_LEAVE = f"import pathlib; pathlib.Path.home().joinpath({_MARKER!r}).touch()"
_LOOK = f"import pathlib; print(pathlib.Path.home().joinpath({_MARKER!r}).exists())"


async def verify_clean(instance: Instance) -> None:
    """Return when the guest answers and shows no trace of an earlier holder.

    Raises:
        MachineFailed: it does not answer, or it is dirty.
    """
    reply = await ask_async(instance.host, instance.port, "GET", "/paragent/state", timeout=_SECONDS)
    if reply.status == _NOT_FOUND:
        if (await _python(instance, _LOOK)).strip() != "False":
            raise MachineFailed("the marker of an earlier holder is still there: the reset did not reset the disk")
        return
    state = checked(reply, "state").json()
    if state.get("holder") is not None or state.get("marker"):
        raise MachineFailed("the marker of an earlier holder is still there: the reset did not reset the machine")
    # The first command of an emulated clone takes three times as long as the next ones: let it be one that nobody waits for.
    fields = {"command": ["true"], "shell": False}
    path = "/execute"
    checked(await ask_async(instance.host, instance.port, "POST", path, as_json(fields), timeout=_SECONDS), "execute")


async def adopt(machine_id: str, instance: Instance, lease: LeaseRecord) -> Machine:
    """Give the machine to the holder of `lease`: leave a marker, set clock and random state, refuse other tokens.

    Raises:
        MachineFailed: the guest does not answer or refuses.
    """
    token = str(lease.token)
    fields = {"token": token, "time": time.time(), "entropy": secrets.token_hex(64)}
    path = "/paragent/adopt"
    reply = await ask_async(instance.host, instance.port, "POST", path, as_json(fields), timeout=_SECONDS)
    known: str | None = token
    if reply.status == _NOT_FOUND:
        await _python(instance, _LEAVE)
        known = None
    else:
        checked(reply, "adopt")
    return Machine(machine_id, instance.host, instance.port, known, dict(instance.ports), dict(instance.details))


async def _python(instance: Instance, code: str) -> str:
    fields = {"command": ["python3", "-c", code], "shell": False}
    reply = await ask_async(instance.host, instance.port, "POST", "/execute", as_json(fields), timeout=_SECONDS)
    answer = checked(reply, "marker").json()
    if answer.get("returncode"):
        raise MachineFailed(f"the guest cannot run Python: {answer.get('error', '')[:200]}")
    return str(answer.get("output", ""))
