"""Ids of exact contestants, and counts of bytes, against those of a reference."""

from __future__ import annotations

import numpy as np

from bench.retrieval.cells import agrees
from bench.retrieval.exactness import MARGIN, check_exact, recall_of


def test_bytes_agree_within_two_per_cent_or_sixteen_mebibytes() -> None:
    assert agrees(1_000_000_000, 1_020_000_000)
    assert not agrees(1_000_000_000, 1_030_000_000)
    assert agrees(0, 16 << 20)
    assert not agrees(0, (16 << 20) + 1)


def _reference(count: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.arange(3 + MARGIN, dtype=np.int64)[None].repeat(count, 0)
    scores = np.linspace(0.9, 0.5, 3 + MARGIN, dtype=np.float32)[None].repeat(count, 0)
    return ids, scores


def test_ids_are_the_same_tied_or_different() -> None:
    ids, scores = _reference(5)
    scores[1, 3] = scores[1, 2] - 5e-6  # the fourth ties with the third
    found = np.array([[0, 1, 2], [0, 1, 3], [0, 1, 3], [0, 1, 99], [0, 1, -1]], dtype=np.int64)
    agreed = check_exact(found, ids, scores)
    assert (agreed.same, agreed.tied, agreed.different) == (1, 1, 3)
    assert "row 99 is not among the first 13" in agreed.examples[1]
    assert "2 hits instead of 3" in agreed.examples[2]
    assert check_exact(found[:1], ids[:1], scores[:1]).holds


def test_an_id_that_is_there_twice_is_different() -> None:
    ids, scores = _reference(1)
    scores[:] = 0.5
    assert check_exact(np.array([[0, 0, 1]], dtype=np.int64), ids, scores).different == 1


def test_recall_counts_expected_ids_and_those_that_tie_with_the_last() -> None:
    ids, scores = _reference(3)
    scores[1, 3] = scores[1, 2] - 5e-6  # the fourth ties with the third
    found = np.array([[2, 0, 1], [0, 1, 3], [0, 9, -1]], dtype=np.int64)
    assert recall_of(found, ids, scores) == (3 + 3 + 1) / 9
    ids[2, 1:] = -1  # only one row there
    assert recall_of(found, ids, scores) == (3 + 3 + 1) / 7
