"""How a grown set is judged, against the simple version; the search for a spread; sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.data.grown.behaviour import (
    FIRST_CHUNK_ROWS,
    Acceptance,
    Behaviour,
    behaviour,
    nearest,
)
from bench.data.grown.grow import SPREADS, usual_spread
from bench.data.grown.sentences import SENTENCES_MAX, embed_sentences, split_sentences
from bench.data.grown.sources import nearest_passages
from bench.data.trace import Clustered
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError


def _unit(random: np.random.Generator, rows: int, dimension: int = 8) -> np.ndarray:
    vectors = random.standard_normal((rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(10, 3 * FIRST_CHUNK_ROWS),
    questions=st.integers(1, 20),
)
def test_the_nearest_rows_are_those_of_a_full_sort(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rows: int, questions: int
) -> None:
    random = np.random.default_rng(seed)
    # Few different components: many equal scores, of which the lower row comes first. All sums are
    # exact.
    vectors = np.eye(8, dtype=np.float16)[random.integers(0, 8, rows)]
    asked = random.integers(-4, 5, (questions, 8)).astype(np.float32)
    path = tmp_path_factory.mktemp("nearest") / "vectors.npy"
    np.save(path, vectors)
    found = nearest(path, asked)
    scores = asked @ vectors.astype(np.float32).T
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    assert found.tolist() == expected.tolist()


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_ceilings_are_the_shares_of_the_nearest_in_the_probed_clusters(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, asked, centroids = _unit(random, 300), _unit(random, 30), _unit(random, 12)
    clusters = np.argmax(rows @ centroids.T, axis=1)
    scores = asked @ rows.T
    best = np.argsort(-scores, axis=1)[:, :10]
    found = behaviour(
        best,
        Clustered(centroids=centroids, clusters=clusters),
        asked,
        seed=0,
        nprobes=(1, 3, 12),
    )
    for nprobe, ceiling in zip(found.nprobes, found.ceilings, strict=True):
        probed = [set(np.argsort(-(centroids @ question))[:nprobe].tolist()) for question in asked]
        inside = [
            clusters[row] in probed[number]
            for number, row_list in enumerate(best)
            for row in row_list
        ]
        assert ceiling == pytest.approx(np.mean(inside))
    assert found.ceilings[-1] == 1


def _behaviour(ceilings: tuple[float, ...], touched: float) -> Behaviour:
    return Behaviour(
        row_count=1,
        nlist=100,
        nprobes=(5, 10, 20, 32),
        ceilings=ceilings,
        touched=touched,
    )


@pytest.mark.parametrize(
    ("differences", "touched", "holds"),
    [
        ((0.0, 0.0, 0.0, 0.0), 0.0, True),
        ((0.019, -0.019, 0.0, 0.0), 4.9, True),
        ((0.021, 0.0, 0.0, 0.0), 0.0, False),
        ((0.0, 0.0, 0.0, -0.021), 0.0, False),
        ((0.0, 0.0, 0.0, 0.0), -5.1, False),
    ],
)
def test_a_set_holds_when_every_difference_does(
    differences: tuple[float, ...], touched: float, holds: bool
) -> None:
    real = (0.7, 0.8, 0.9, 0.95)
    grown = tuple(before + difference for before, difference in zip(real, differences, strict=True))
    acceptance = Acceptance(real=_behaviour(real, 76), grown=_behaviour(grown, 76 + touched))
    assert acceptance.holds() is holds
    assert acceptance.columns()["real"]["recall@10 at nprobe 5"] == "0.7000"


def test_more_rows_need_a_larger_spread() -> None:
    for rows, spread in SPREADS:
        assert usual_spread(rows) == pytest.approx(spread)
    assert SPREADS[0][1] < usual_spread(50_000) < SPREADS[1][1]


def test_neighbours_are_the_nearest_passages_without_the_passage_itself() -> None:
    vectors = _unit(np.random.default_rng(2), 3000)
    found = nearest_passages(vectors, 5)
    for row in (0, 1, 2047, 2048, 2999):
        scores = vectors @ vectors[row]
        scores[row] = -np.inf
        assert set(found[row].tolist()) == set(np.argsort(-scores)[:5].tolist())
    with pytest.raises(ConfigError, match="too few to grow from"):
        nearest_passages(vectors[:2], 1)


def test_a_text_is_split_where_sentences_end_and_short_rests_are_left_out() -> None:
    text = (
        "The first sentence of many words. The second one has v.2 of a word. Short. The "
        "third follows here!"
    )
    assert split_sentences(text) == (
        "The first sentence of many words.",
        "The second one has v.2 of a word.",
        "The third follows here!",
    )
    assert split_sentences("tiny") == ("tiny",)
    assert len(split_sentences("This is one sentence of the text. " * 9)) == SENTENCES_MAX


def test_sentences_that_were_saved_are_used_again_and_damaged_ones_are_embedded_anew(
    tmp_path: Path,
) -> None:
    hashing = EmbeddingSettings(model="hashing:16")
    passages = [
        (f"Title {number}", f"Something is said here about {number}. And more of it is here.")
        for number in range(700)
    ]
    steps: list[tuple[int, int]] = []

    def tell(_: str, done: int, total: int) -> None:
        steps.append((done, total))

    first = embed_sentences(passages, embedding=hashing, cache=tmp_path, tell=tell)
    assert first.passages.tolist() == [number for number in range(700) for _ in range(2)]
    assert np.linalg.norm(first.vectors, axis=1) == pytest.approx(1, abs=1e-5)
    (saved,) = tmp_path.iterdir()
    steps.clear()
    again = embed_sentences(passages, embedding=hashing, cache=tmp_path, tell=tell)
    assert (again.vectors == first.vectors).all()
    assert steps == []
    saved.write_bytes(saved.read_bytes()[:500])
    mended = embed_sentences(passages, embedding=hashing, cache=tmp_path, tell=tell)
    assert (mended.vectors == first.vectors).all()
    assert steps[-1] == (1400, 1400)
    other = embed_sentences(passages[:3], embedding=hashing, cache=tmp_path, tell=tell)
    assert len(other.vectors) == 6
    assert len(list(tmp_path.iterdir())) == 2
