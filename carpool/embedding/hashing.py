"""A bag of hashed words: a deterministic embedder without weights, for tests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """Feature hashing: adds +1 or -1 for each word at the place of its hash, then normalises.

    Texts that share words have similar vectors, whatever their meaning. For tests only.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.fingerprint = hashlib.sha256(f"hashing-v0:{dimension}".encode()).hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns (len(texts), dimension) float32, normalised; (1, 0, ...) without words."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                digest = hashlib.blake2b(
                    word.encode("utf-8", "surrogatepass"), digest_size=8
                ).digest()
                number = int.from_bytes(digest, "little")
                # Sign and place depend on different bits, so collisions cancel on average.
                vectors[row, (number >> 1) % self.dimension] += 1.0 if number & 1 else -1.0
            if not vectors[row].any():
                vectors[row, 0] = 1.0
        normalised: npt.NDArray[np.float32] = vectors / np.linalg.norm(
            vectors, axis=1, keepdims=True
        )
        return normalised
