"""While the model thinks, the machine can stand still: more desktops fit the processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.models import Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.models import Completion
    from paragent.vms import Lease

__all__ = ["PausingModel"]


class PausingModel(Model):
    """Asks another model, which it does not own, with the machine of a lease paused meanwhile."""

    def __init__(self, model: Model, lease: Lease) -> None:
        super().__init__(model.settings)
        self._model, self._lease = model, lease

    async def complete(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Completion:
        """Ask; raises as the other model, and LeaseLost if the machine is gone."""
        try:
            await self._lease.apause()  # inside: whoever is cancelled here may have paused the machine already
            return await self._model.complete(messages, tools)
        finally:
            await self._lease.aresume()
