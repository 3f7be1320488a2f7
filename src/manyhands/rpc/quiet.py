"""Keeps gRPC's own log lines off the terminal; loaded before gRPC is. What they say, our errors say.

A user who wants them sets GRPC_VERBOSITY.
"""

from __future__ import annotations

import os

__all__: list[str] = []

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
