"""Embeds the texts of a window in one batch; a bad text fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carpool.embedding import Embedder
from carpool.errors import ConfigError

KNOWN_GOOD_TEXT = "Which queries should share a trip?"
"""A text that every working model can embed: if it fails, the model is broken."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The results, by position: `vectors[i]` is (dim,) float32, L2-normalised; `failures[i]` is
    the reason for a failure.
    """

    vectors: dict[int, NDArray[np.float32]]
    failures: dict[int, str]


def embed_texts(embedder: Embedder, texts: Sequence[str]) -> Embedded:
    """Returns a vector or a failure for every text. Blocks for as long as the model takes.

    All texts go in one batch; if that fails, one by one, to find the texts that fail. Raises
    `ConfigError` if a known good text fails too: then the model is broken.
    """
    vectors: dict[int, NDArray[np.float32]] = {}
    failures: dict[int, str] = {}
    if not texts:
        return Embedded(vectors=vectors, failures=failures)
    try:
        rows = _encode(embedder, texts)
    except Exception:
        for position, text in enumerate(texts):
            try:
                vectors[position] = _encode(embedder, [text])[0]
            except Exception as error:
                failures[position] = f"{type(error).__name__}: {error}"
    else:
        vectors.update(enumerate(rows))
    if not vectors:
        _check_model(embedder)
    return Embedded(vectors=vectors, failures=failures)


def _check_model(embedder: Embedder) -> None:
    try:
        _encode(embedder, [KNOWN_GOOD_TEXT])
    except Exception as error:
        raise ConfigError(
            f"the embedding model {embedder.fingerprint} embeds nothing any more "
            f"({type(error).__name__}: {error}), so no query can be planned; nothing is lost: "
            "check memory and the model's folder, then start again"
        ) from error


def _encode(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Returns the rows of `texts`, or an exception unless each row is a usable vector."""
    rows = np.asarray(embedder.encode(texts), dtype=np.float32)
    if rows.shape != (len(texts), embedder.dimension):
        raise ValueError(
            f"the model gave {rows.shape} for {len(texts)} texts of dimension {embedder.dimension}"
        )
    norms = np.linalg.norm(rows, axis=1)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise ValueError("the model gave a vector that is zero or not finite")
    return rows
