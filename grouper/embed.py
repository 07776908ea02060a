"""Embeds the texts of a window in one batch; a bad text fails alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from carpool.embedding import Embedder
from carpool.errors import ConfigError

KNOWN_GOOD_TEXT = "Which queries should share a trip?"
"""A text that every working model can embed: if it fails, the model is broken."""


def embed_texts(embedder: Embedder, texts: Sequence[str]) -> list[NDArray[np.float32] | str]:
    """Returns for each text its vector, (dim,) float32, L2-normalised, or why it has none. Blocks.

    All texts go in one batch; if that fails, one by one, to find the texts that fail. Raises
    `ConfigError` if all fail and a known good text fails too: then the model is broken.
    """
    if not texts:
        return []
    try:
        return list(embedder.encode(texts))
    except Exception:
        found = [_embed_alone(embedder, text) for text in texts]
    all_failed = all(isinstance(each, str) for each in found)
    if all_failed and isinstance(reason := _embed_alone(embedder, KNOWN_GOOD_TEXT), str):
        raise ConfigError(
            f"the embedding model {embedder.fingerprint} embeds nothing any more ({reason}), so no "
            "query can be planned; nothing is lost: check memory and the model's folder, then "
            "start again"
        )
    return found


def _embed_alone(embedder: Embedder, text: str) -> NDArray[np.float32] | str:
    try:
        vector: NDArray[np.float32] = embedder.encode([text])[0]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return vector
