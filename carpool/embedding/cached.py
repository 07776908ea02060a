"""A cache of the vectors of questions: a text that is asked again is not embedded again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from carpool.embedding.embedder import Embedder

TEXTS_MAX = 1_000
"""Vectors in the cache: 1.5 MB at 384 dimensions."""


class CachedEmbedder:
    """An embedder with a cache by text. The least recently used text leaves the cache.

    An equal text gets the bytes that were computed first; computed again, the last bits may differ,
    because they depend on the texts in the same pass. A failure empties the cache, so a broken
    model is not hidden by texts that it embedded before.
    """

    def __init__(self, model: Embedder) -> None:
        self._model = model
        self._rows: OrderedDict[bytes, npt.NDArray[np.float32]] = OrderedDict()
        self.fingerprint = model.fingerprint
        self.dimension = model.dimension

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns (len(texts), dimension) float32, rows L2-normalised. Blocks; one thread.

        Raises `ValueError` where the model gives something else.
        """
        keys = [hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
        if new:
            try:
                rows = self._computed(list(new.values()))
            except Exception:
                self._rows.clear()
                raise
            self._rows.update(zip(new, map(np.copy, rows), strict=True))
        found = np.empty((len(keys), self.dimension), dtype=np.float32)
        for position, key in enumerate(keys):
            found[position] = self._rows[key]
            self._rows.move_to_end(key)
        while len(self._rows) > TEXTS_MAX:
            self._rows.popitem(last=False)
        return found

    def _computed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns the rows of `texts`, or an exception unless each row is a usable vector."""
        rows = np.asarray(self._model.encode(texts), dtype=np.float32)
        if rows.shape != (len(texts), self.dimension):
            raise ValueError(
                f"the model gave {rows.shape} for {len(texts)} texts of dimension {self.dimension}"
            )
        norms = np.linalg.norm(rows, axis=1)
        if not (np.isfinite(norms) & (norms > 0)).all():
            raise ValueError("the model gave a vector that is zero or not finite")
        return rows
