"""A text is embedded once while the cache has it, and a broken model is not hidden by the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from carpool.embedding import loader
from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.loader import CachedEmbedder


class Model(HashingEmbedder):
    """Notes the texts of each call. Its vectors depend on the call, as last bits of others do."""

    def __init__(self) -> None:
        super().__init__(8)
        self.calls: list[list[str]] = []
        self.is_broken = False

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        if self.is_broken:
            raise RuntimeError("out of memory")
        rows = super().encode(texts)
        rows[:, 0] += len(self.calls) / 1024
        return rows


def test_equal_texts_of_a_call_and_of_later_calls_are_embedded_once_and_get_equal_bytes() -> None:
    model = Model()
    embedder = CachedEmbedder(model)
    first = embedder.encode(["ada", "bell", "ada"])
    first_bytes = first.tobytes()
    assert first[0].tobytes() == first[2].tobytes()
    first[:] = 0  # the caller owns what it got
    later = embedder.encode(["ada", "curie", "bell", "ada"])
    assert later[[0, 2, 3]].tobytes() == first_bytes
    assert model.calls == [["ada", "bell"], ["curie"]]


def test_the_least_recently_used_text_leaves_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "TEXTS_MAX", 2)
    model = Model()
    embedder = CachedEmbedder(model)
    assert embedder.encode(["ada", "bell", "curie"]).shape == (3, 8)  # more than it keeps
    for text in ("bell", "darwin", "bell", "curie"):
        embedder.encode([text])
    assert model.calls == [["ada", "bell", "curie"], ["darwin"], ["curie"]]


def test_after_a_failure_each_text_is_embedded_again() -> None:
    model = Model()
    embedder = CachedEmbedder(model)
    embedder.encode(["ada"])
    model.is_broken = True
    for texts in (["ada", "bell"], ["ada"]):
        with pytest.raises(RuntimeError, match="out of memory"):
            embedder.encode(texts)
    model.is_broken = False
    embedder.encode(["ada"])
    assert model.calls == [["ada"], ["bell"], ["ada"], ["ada"]]
