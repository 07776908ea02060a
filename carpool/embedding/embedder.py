"""The protocol of embedding models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BATCH_TEXTS = 8
"""Texts in one pass through a model. On a CPU, 16 take more memory and more time than 8."""


def batches(texts: Sequence[str], size: int = BATCH_TEXTS) -> Iterator[list[int]]:
    """Yields positions of texts of about one length, the longest first: little is padded."""
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


class Embedder(Protocol):
    """A model that turns texts into vectors."""

    @property
    def fingerprint(self) -> str:
        """A hash of the model in hex: only vectors of equal fingerprints can be compared."""

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns (len(texts), dimension) float32, rows L2-normalised, in the order of `texts`.

        Blocks; one thread at a time. A text that is too long for the model is cut. The same texts
        in the same call give the same bytes.
        """
