"""What a model gives for a text must be a vector; the stage tests what happens if it fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.loader import CachedEmbedder
from carpool.errors import ConfigError
from grouper.embed import KNOWN_GOOD_TEXT, embed_texts


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), 0.0])
def test_a_vector_that_has_no_direction_counts_as_failed(fault: float) -> None:
    class Faulty(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            rows = super().encode(texts)
            rows[[text == "two" for text in texts]] = fault
            return rows

    one, two, three = embed_texts(CachedEmbedder(Faulty(8)), ["one", "two", "three"])
    expected = HashingEmbedder(8).encode(["one", "three"])
    assert np.array_equal([one, three], expected)
    assert "zero or not finite" in two


def test_a_model_that_gives_another_shape_is_broken() -> None:
    class Narrow(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return super().encode(texts)[:, :4]

    with pytest.raises(ConfigError, match=r"gave \(1, 4\) for 1 texts of dimension 8"):
        embed_texts(CachedEmbedder(Narrow(8)), ["one"])


def test_a_model_that_breaks_is_found_although_it_embedded_texts_of_the_window_before() -> None:
    class Breaking(HashingEmbedder):
        is_broken = False

        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return super().encode(texts) * (np.nan if self.is_broken else 1)

    model = Breaking(8)
    embedder = CachedEmbedder(model)
    embed_texts(embedder, ["one", KNOWN_GOOD_TEXT])
    model.is_broken = True
    with pytest.raises(ConfigError, match="embeds nothing any more"):
        embed_texts(embedder, ["one", "two"])
