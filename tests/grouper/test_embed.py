"""One bad text sinks neither the batch nor the service; a broken model is not blamed on texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from carpool.embedding import HashingEmbedder
from carpool.errors import ConfigError
from grouper.embed import embed_texts


class FailsOn(HashingEmbedder):
    """The hashing embedder, but for some texts; remembers the batches it was asked for."""

    def __init__(self, *bad: str, fault: float | None = None) -> None:
        super().__init__(8)
        self.bad = bad
        self.fault = fault
        self.batches: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        rows = super().encode(texts)
        for position, text in enumerate(texts):
            if text in self.bad or "*" in self.bad:
                if self.fault is None:
                    raise RuntimeError(f"cannot read {text!r}")
                rows[position] = self.fault
        return rows


def test_all_texts_go_in_one_batch() -> None:
    embedder = FailsOn()
    embedded = embed_texts(embedder, ["one", "two", "three"])
    assert embedder.batches == [["one", "two", "three"]]
    assert sorted(embedded.vectors) == [0, 1, 2]
    assert np.array_equal(
        np.stack([embedded.vectors[i] for i in range(3)]),
        HashingEmbedder(8).encode(["one", "two", "three"]),
    )
    assert embedded.failures == {}


def test_the_culprit_is_found_and_the_others_are_embedded() -> None:
    embedded = embed_texts(FailsOn("two"), ["one", "two", "three"])
    assert sorted(embedded.vectors) == [0, 2]
    assert embedded.failures == {1: "RuntimeError: cannot read 'two'"}
    assert np.array_equal(embedded.vectors[2], HashingEmbedder(8).encode(["three"])[0])


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), 0.0])
def test_a_vector_that_has_no_direction_counts_as_failed(fault: float) -> None:
    embedded = embed_texts(FailsOn("two", fault=fault), ["one", "two"])
    assert sorted(embedded.vectors) == [0]
    assert "zero or not finite" in embedded.failures[1]


def test_a_broken_model_is_an_error_of_the_service() -> None:
    with pytest.raises(ConfigError, match="embeds nothing any more"):
        embed_texts(FailsOn("*"), ["one", "two"])


def test_a_model_that_gives_another_shape_is_broken() -> None:
    class Narrow(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return super().encode(texts)[:, :4]

    with pytest.raises(ConfigError, match=r"gave \(1, 4\) for 1 texts of dimension 8"):
        embed_texts(Narrow(8), ["one"])
