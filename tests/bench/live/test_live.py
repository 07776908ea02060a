"""What decides in the live benchmarks: which answers are mixed, pauses, shares that were found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.live.corpus import PutPlace, Truth
from bench.live.load import Span, longest_gap_ms, spans
from bench.live.stream import TOP_K, share_found
from schemas.hit import Hit
from schemas.record import ClusterId

TRUTH = Truth(
    [
        PutPlace(name="row-1", revision=2, partition=3, offset=20, acked_us=0),
        PutPlace(name="row-1", revision=1, partition=3, offset=10, acked_us=0),
    ]
)


def hit(doc_id: str, revision: int) -> Hit:
    return Hit(doc_id=doc_id, score=1.0, cluster=ClusterId(0), text=f"Revision {revision}. Text.")


@pytest.mark.parametrize(
    ("position", "revision"), [({}, 0), ({3: 9}, 0), ({3: 10}, 1), ({3: 19}, 1), ({3: 20}, 2)]
)
def test_a_passage_is_of_the_revision_at_the_position(
    position: dict[int, int], revision: int
) -> None:
    for told in range(4):
        is_mixed = TRUTH.is_mixed([hit("row-1#4", told)], position)
        assert is_mixed == (told != revision)


def test_a_document_that_was_not_put_is_as_in_the_base() -> None:
    assert not TRUTH.is_mixed([hit("row-2", 0), hit("row-3", 0)], {3: 99})
    assert TRUTH.is_mixed([hit("row-2", 1)], {3: 99})


def test_no_passage_is_found_twice() -> None:
    assert TRUTH.is_mixed([hit("row-2", 0), hit("row-2", 0)], {})


def test_the_longest_gap_is_one_that_meets_the_span() -> None:
    times_us = [0, 50_000, 100_000, 400_000, 450_000, 2_000_000]
    assert longest_gap_ms(times_us, Span(120_000, 130_000)) == 300
    assert longest_gap_ms(times_us, Span(10_000, 60_000)) == 50
    assert longest_gap_ms([], Span(0, 1)) == 0


def test_spans_are_read_from_a_log(tmp_path: Path) -> None:
    log = tmp_path / "searcher.log"
    log.write_text(
        '{"event":"a newer base is searched","took_us":2000,'
        '"timestamp":"1970-01-01T00:00:01.500000Z"}\nno JSON\n'
    )
    assert spans(log, "a newer base is searched") == [Span(1_498_000, 1_500_000)]


def test_ties_count_as_found() -> None:
    scores = np.array([[1.0] * TOP_K + [1.0, 0.5]], np.float32)
    every = np.ones(scores.shape, np.bool_)
    best = np.arange(TOP_K)[None]
    assert share_found(scores, every, best) == 1
    assert share_found(scores, every, best + 1) == 1
    assert share_found(scores, every, best + 2) == 0.9
    among = every.copy()
    among[0, 0] = False  # nobody may find it
    assert share_found(scores, among, best + 1) == 1
