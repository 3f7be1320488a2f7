"""What a pool and its clients say to each other on a stream: JSON, one call or one answer in each message.

::

    {"call": 7, "do": "acquire", "with": [...]}          client to pool
    {"call": 7, "answer": ...}                           pool to client, in any order
    {"call": 7, "error": ["LeaseLost", "..."]}
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from paragent import errors
from paragent.errors import MachineFailed, ParagentError, ProtocolError
from paragent.machines.machine import Grant, Machine, MachineStatus, PoolStatus
from paragent.machines.state_machine import MachineState

__all__ = ["SERVICE", "decode", "encode", "error_from", "error_to", "grant_from", "status_from", "to_plain"]

SERVICE = "pool"
"""The name of the service in the handshake."""
_ERRORS = (
    errors.ConfigError,
    errors.LeaseLost,
    errors.LeaseTimeout,
    errors.MachineFailed,
    errors.PoolFailed,
    errors.PoolStopped,
    errors.UsageError,
)
"""Errors that a pool raises and a client gets as they are."""
_BY_NAME: dict[str, type[ParagentError]] = {kind.__name__: kind for kind in _ERRORS}


def encode(**fields: Any) -> bytes:
    """Return the bytes of a message."""
    return json.dumps(fields).encode()


def decode(data: bytes) -> dict[str, Any]:
    """Return the fields of a message.

    Raises:
        ProtocolError: it is no JSON object with a call's number.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("the peer does not speak the pool's protocol") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("call"), int):
        raise ProtocolError("the peer does not speak the pool's protocol")
    return fields


def to_plain(answer: Any) -> Any:
    """Return an answer as JSON can carry it."""
    return asdict(answer) if isinstance(answer, Grant | PoolStatus) else answer


def error_to(error: ParagentError) -> list[str]:
    """Return an error as JSON can carry it."""
    return [type(error).__name__, str(error)]


def error_from(fields: list[str]) -> ParagentError:
    """Return the error that the pool raised."""
    name, message = fields
    return _BY_NAME.get(name, MachineFailed)(message)


def grant_from(fields: dict[str, Any]) -> Grant:
    """Return a grant."""
    machine = fields["machine"]
    ports = {int(guest): host for guest, host in machine["ports"].items()}
    return Grant(fields["token"], Machine(**machine | {"ports": ports}), fields["duration"])


def status_from(fields: dict[str, Any]) -> PoolStatus:
    """Return a status."""
    rows = tuple(MachineStatus(**row | {"state": MachineState(row["state"])}) for row in fields["machines"])
    return PoolStatus(**fields | {"machines": rows})
