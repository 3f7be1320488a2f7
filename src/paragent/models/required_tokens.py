"""`TokenRequiringModel`: a model whose replies must have token ids, for training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.errors import TokensMissing
from paragent.models.base import Completion, Model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["TokenRequiringModel"]


class TokenRequiringModel(Model):
    """Checks each reply of another model, which it does not close.

    Raises:
        TokensMissing: (by every request) the reply has no token ids. The first reply shows it, so that a run does not go on
            for hours with rollouts that cannot be used.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model.settings)
        self.dialect = model.dialect
        self._model = model

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Request a completion; raises the errors of the other model, and `TokensMissing`."""
        return self._checked(await self._model.complete(messages, tools, options))

    async def forward(self, request: Mapping[str, Any]) -> Completion:
        """Send a request; raises the errors of the other model, and `TokensMissing`."""
        return self._checked(await self._model.forward(request))

    def pressure(self) -> tuple[int, int]:
        """Return the number of requests in flight and the current limit."""
        return self._model.pressure()

    @property
    def has_answered(self) -> bool:
        return self._model.has_answered

    def _checked(self, completion: Completion) -> Completion:
        if completion.tokens is None:
            raise TokensMissing(
                f"the endpoint {self.settings.base_url or ''} returned no token ids of the prompt and the reply. Training needs "
                "an endpoint that returns them for `return_token_ids: true`, such as vLLM 0.10.2 or later"
            )
        return completion
