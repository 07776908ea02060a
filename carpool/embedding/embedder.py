"""The seam that every embedding model stands behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Embedder(Protocol):
    """A model that turns texts into vectors."""

    @property
    def fingerprint(self) -> str:
        """Short hex that names the weights: only vectors of equal fingerprints can be compared."""
        ...

    @property
    def dimension(self) -> int:
        """Components of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns (len(texts), dimension) float32, rows L2-normalised, in the order of `texts`.

        Blocks for as long as the model computes; call it from one thread at a time. A text longer
        than the model reads is cut, never refused. The same texts in the same call give the same
        bytes.
        """
        ...
