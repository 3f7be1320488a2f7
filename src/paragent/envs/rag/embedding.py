"""Embeddings of passages: computed once per knowledge base and model, stored in a file that all processes map."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openai

from paragent._internal.tracebacks import described
from paragent.envs.rag.index import build_once
from paragent.errors import ConfigError, EndpointRefused, EnvironmentFailed
from paragent.machines.cleanup import cache_folder
from paragent.models.base import ModelSettings
from paragent.models.credentials import endpoint_from_environment, redactor_of, shown_address
from paragent.models.http_client import name_redirect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.envs.rag.index import Index

__all__ = ["RETRIES", "Embedder", "Vectors", "open_vectors"]

_BATCH = 128
"""Texts in one request; OpenAI allows 2,048, small servers a few hundred."""
_LIMIT = 60.0
"""Seconds for one request."""
RETRIES = 5
"""Retries by the `openai` client, which backs off and honours `Retry-After`."""
_REFUSALS = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


class Embedder:
    """Computes embeddings of length 1. Blocking and thread-safe.

    Raises:
        ConfigError: there is no API key for the endpoint.
    """

    def __init__(self, model: str) -> None:
        url, key = endpoint_from_environment(Path.cwd())
        if not key:
            raise ConfigError("the option `embeddings` uses the model's endpoint: set OPENAI_API_KEY")
        self.model = model
        self._redactor = redactor_of(ModelSettings(name=model, base_url=url, api_key=key))
        self._client = openai.OpenAI(
            api_key=key,
            base_url=url,
            timeout=_LIMIT,
            max_retries=RETRIES,
            http_client=openai.DefaultHttpxClient(timeout=_LIMIT, follow_redirects=False),
        )

    def embed(self, texts: Sequence[str]) -> Any:
        """Return one row for each text.

        Raises:
            EndpointRefused: the endpoint does not accept the key or the model.
            EnvironmentFailed: the endpoint does not answer, or not with embeddings.
        """
        try:
            reply = self._client.embeddings.create(model=self.model, input=list(texts), encoding_format="float")
            rows = np.array([one.embedding for one in reply.data], dtype=np.float32)
        except _REFUSALS as error:
            self._redactor.error(error)
            raise EndpointRefused(f"the endpoint refuses embeddings with the model {self.model!r}: {error}") from error
        except (openai.OpenAIError, ValueError, TypeError, AttributeError) as error:
            name_redirect(error, "embeddings")
            self._redactor.error(error)
            raise EnvironmentFailed(
                f"{shown_address(str(self._client.base_url))} returned no embeddings of the model {self.model!r}: "
                f"{described(error)}"
            ) from error
        if rows.ndim != 2 or len(rows) != len(texts):
            raise EnvironmentFailed(f"the endpoint returned {len(rows)} embeddings for {len(texts)} texts")
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(lengths == 0, 1, lengths)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class Vectors:
    """The embeddings of all passages of an index."""

    def __init__(self, path: Path, embedder: Embedder) -> None:
        self._rows = np.load(path, mmap_mode="r")
        self._embedder = embedder

    def nearest(self, query: str, most: int) -> list[int]:
        """Return the numbers of the passages nearest to the query, nearest first. Raises like `Embedder.embed`."""
        if not len(self._rows):
            return []
        scores = self._rows @ self._embedder.embed([query])[0]
        chosen = np.argpartition(-scores, min(most, len(scores)) - 1)[:most]
        return [int(row) for row in chosen[np.argsort(-scores[chosen])]]

    def close(self) -> None:
        """Close the embedder."""
        self._embedder.close()


def open_vectors(index: Index, model: str) -> Vectors:
    """Return the embeddings of an index, computed now unless they are cached. Blocking.

    Raises:
        ConfigError, EndpointRefused, EnvironmentFailed: see `Embedder`.
    """
    embedder = Embedder(model)
    name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in model)
    path = cache_folder("indexes") / f"{index.name}-{name}.npy"
    try:
        build_once(path, lambda: _build(index, embedder, path))
    except BaseException:
        embedder.close()
        raise
    return Vectors(path, embedder)


def _build(index: Index, embedder: Embedder, path: Path) -> None:
    """Write a temporary file and rename it, so that no process sees an incomplete file."""
    texts = list(index.texts())
    parts = [embedder.embed(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as draft:
        np.save(draft, np.concatenate(parts) if parts else np.zeros((0, 1), dtype=np.float32))
    Path(draft.name).rename(path)
