"""gRPC once: addresses, the token, TLS, authenticated streams, and what a status means.

Everything that crosses a process boundary over the network goes through here, so that there is one place that decides
who may speak. The records below import nothing of gRPC; `rpc.client` and `rpc.server` do and are loaded when used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from paragent._internal.lazy import names_from

if TYPE_CHECKING:
    from paragent.transport.address import Address
    from paragent.transport.auth import Token, load_token
    from paragent.transport.limits import Limits
    from paragent.transport.tls import TlsConf

__all__ = ["Address", "Limits", "TlsConf", "Token", "load_token"]

__getattr__ = names_from(
    __name__, {"address": ("Address",), "auth": ("Token", "load_token"), "limits": ("Limits",), "tls": ("TlsConf",)}
)

# gRPC writes log lines of its own to the terminal, and reads this when it is loaded. What they say, our errors say; a user
# who wants them sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# gRPC would also stop and start its threads around every fork, and a child that is forked while they work may crash in that
# before it runs what it was forked for: one in six did, Ray's processes among them. Nothing here uses gRPC in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
