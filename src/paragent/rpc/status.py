"""What each gRPC status means for the caller: one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from paragent.errors import AccessDenied, LimitExceeded, ParagentError, ProtocolError, ServerLost

if TYPE_CHECKING:
    from paragent.rpc.address import Address

__all__ = ["ERRORS", "error_of"]

_Code = grpc.StatusCode

ERRORS: dict[grpc.StatusCode, type[ParagentError]] = {
    _Code.OK: ServerLost,  # a stream that ends although nobody closed it
    _Code.CANCELLED: ServerLost,
    _Code.UNKNOWN: ServerLost,
    _Code.UNAVAILABLE: ServerLost,
    _Code.DEADLINE_EXCEEDED: ServerLost,
    _Code.ABORTED: ServerLost,
    _Code.INTERNAL: ServerLost,
    _Code.DATA_LOSS: ServerLost,
    _Code.UNAUTHENTICATED: AccessDenied,
    _Code.PERMISSION_DENIED: AccessDenied,
    _Code.RESOURCE_EXHAUSTED: LimitExceeded,
    _Code.OUT_OF_RANGE: LimitExceeded,
    _Code.INVALID_ARGUMENT: ProtocolError,
    _Code.FAILED_PRECONDITION: ProtocolError,
    _Code.NOT_FOUND: ProtocolError,
    _Code.ALREADY_EXISTS: ProtocolError,
    _Code.UNIMPLEMENTED: ProtocolError,
}


def error_of(code: grpc.StatusCode, details: str | None, address: Address) -> ParagentError:
    """Return the error that stands for a status of the server at `address`."""
    return ERRORS[code](f"server {address}: {details or code.name.lower().replace('_', ' ')}")
