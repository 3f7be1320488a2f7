"""The model gateway: the HTTP server of a worker that agents call instead of the model endpoint."""

from paragent.gateway.calls import GatewayHandler
from paragent.gateway.server import Gateway, GatewayAddress

__all__ = ["Gateway", "GatewayAddress", "GatewayHandler"]
