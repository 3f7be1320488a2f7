"""Network transport: addresses, tokens, TLS, framing, authenticated gRPC streams and JSON calls over them.

All network traffic between paragent processes goes through this package, so authentication happens in one place. Only
`transport.client` and `transport.server` import gRPC; they are loaded when used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.transport.address import Address, TlsConf
    from paragent.transport.auth import Token, load_token
    from paragent.transport.limits import Limits

__all__ = ["Address", "Limits", "TlsConf", "Token", "load_token"]

__getattr__ = names_from(
    __name__, {"address": ("Address", "TlsConf"), "auth": ("Token", "load_token"), "limits": ("Limits",)}
)

# gRPC reads this variable when it is loaded. Without it, gRPC writes log lines to the terminal that only repeat our errors.
# Set the variable to see them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# With fork support, gRPC stops and restarts its threads around every fork. A child that is forked while those threads are busy
# may crash in that code: one in six did, Ray's processes among them. A forked child cannot use gRPC in any case, so there
# `transport.loop.io_loop` raises.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
