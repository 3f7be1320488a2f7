"""How a machine changes hands: verified to be clean before it is free, given to one holder by a token.

Guests with our agent are asked directly, with the machine's secret. A guest that only speaks OSWorld's protocol gets its
marker by a command, and does not know tokens: there the machine's address, which a reset changes or restarts, is what keeps
an old holder away, and the network what keeps everybody else away.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from paragent.errors import MachineFailed
from paragent.vms.guest_http import Reply, as_json, ask_async, checked
from paragent.vms.machine import Machine

if TYPE_CHECKING:
    from paragent.vms.guest_http import Body
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
    reply = await _ask(instance, "GET", "/paragent/state")
    if reply.status == _NOT_FOUND:
        if (await _python(instance, _LOOK)).strip() != "False":
            raise MachineFailed("the marker of an earlier holder is still there: the reset did not reset the disk")
        return
    state = checked(reply, "state").fields()
    if state.get("held") is not False or state.get("marker") is not False:
        raise MachineFailed("the marker of an earlier holder is still there: the reset did not reset the machine")
    # The first command of an emulated clone takes three times as long as the next ones: let it be one that nobody waits for.
    checked(await _ask(instance, "POST", "/execute", as_json({"command": ["true"], "shell": False})), "execute")


async def adopt(machine_id: str, instance: Instance) -> Machine:
    """Give the machine to a new holder: leave a marker, set clock and random state, serve only the holder's token.

    The token is random. It does not depend on the lease's number, which others can guess.

    Raises:
        MachineFailed: the guest does not answer or refuses.
    """
    token = secrets.token_urlsafe(32)
    fields = {"token": token, "time": time.time(), "entropy": secrets.token_hex(64)}
    reply = await _ask(instance, "POST", "/paragent/adopt", as_json(fields))
    if reply.status == _NOT_FOUND:
        await _python(instance, _LEAVE)
    else:
        checked(reply, "adopt")
    return Machine(machine_id, instance.host, instance.port, token, dict(instance.ports), dict(instance.details))


async def _ask(instance: Instance, method: str, path: str, body: Body | None = None) -> Reply:
    token = instance.secret or None
    return await ask_async(instance.host, instance.port, method, path, body, token=token, timeout=_SECONDS)


async def _python(instance: Instance, code: str) -> str:
    reply = await _ask(instance, "POST", "/execute", as_json({"command": ["python3", "-c", code], "shell": False}))
    answer = checked(reply, "marker").fields()
    if answer.get("returncode"):
        raise MachineFailed(f"the guest cannot run Python: {str(answer.get('error', ''))[:200]}")
    return str(answer.get("output", ""))
