"""The searcher as a stage: groups go in, retrievals come out, exact and in time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from carpool.disk.manifest import RecallRow, RecallTable
from schemas.group import HorizonEntry
from schemas.record import ClusterId
from schemas.topics import RETRIEVALS
from searcher.passages.open import PASSAGE_BUFFERS_BYTES
from tests.clocks import HandClock
from tests.searcher.helpers import (
    SmallIndex,
    exact_top_k,
    make_group,
    make_unit,
    random_index,
    running,
)
from tests.searcher.stage import Gate, questions

ROW = RecallRow(target=0.9, nprobe=3, recall=0.9, rows_read=1, read_bytes=1)
TUNED = RecallTable(top_k=5, questions=9, rows=(ROW,))


def test_hits_are_the_exact_top_k_over_the_probed_clusters_whatever_the_advice(
    index: SmallIndex,
) -> None:
    largest = max(extent.size_bytes for extent in index.extents)
    vectors = questions(40)
    horizon = (HorizonEntry(cluster=ClusterId(3), windows=1, queries=4),)
    groups = [
        make_group(
            index,
            vectors[at : at + 5],
            sequence=at,
            next_clusters=(at % 8, 3, 99),
            horizon=horizon * (at % 2),
        )
        for at in range(0, 40, 5)
    ]
    with running(index, budget_bytes=largest + PASSAGE_BUFFERS_BYTES) as run:
        found = run.search(*groups)
    for at, vector in enumerate(vectors):
        retrieval = found[f"q{at // 5 * 5}-{at % 5}"]
        rows = exact_top_k(index, vector, index.clusters_of(vector, 3), 5)
        assert [hit.doc_id for hit in retrieval.hits] == [f"d{row}" for row in rows]
        assert [hit.cluster for hit in retrieval.hits] == [index.assigned[row] for row in rows]
        assert [hit.title for hit in retrieval.hits] == [f"Title {row}" for row in rows]
        assert np.allclose(
            [hit.score for hit in retrieval.hits], index.vectors[rows] @ vector, atol=1e-6
        )
        assert [probe.cluster for probe in retrieval.probes] == list(index.clusters_of(vector, 3))
        assert retrieval.skipped_clusters == ()


def test_a_retrieval_carries_the_query_its_source_and_what_it_took(index: SmallIndex) -> None:
    group = make_group(index, questions(2), top_k=2)
    with running(index, clock=HandClock(5_000_000)) as run:
        retrieval = run.search(group)["q0-1"]
        output = run.sink.outputs()[1]
    grouped = group.queries[1]
    assert retrieval.query == grouped.query
    assert retrieval.source == grouped.source
    assert retrieval.headers == grouped.headers
    assert (retrieval.revision, retrieval.is_final, retrieval.batch_size) == (1, True, 2)
    assert (retrieval.index_version, retrieval.embedding_model) == ("v-test", "model-fingerprint")
    # The group was written at 1 ms, by its broker's timestamp.
    times = {"window_wait": 7, "queue_search": 4_999_000, "load": 0, "search": 0, "passages": 0}
    assert (retrieval.timings_us, retrieval.completed_us) == (times, 5_000_000)
    assert len(retrieval.hits) == 2
    assert output.topic == RETRIEVALS.name
    assert output.key == b"q0-1"
    assert output.partition is None
    headers = dict(output.headers)
    assert headers["ce_id"] == b"rag.queries.v1/0/1/r1"
    assert headers["ce_source"] == b"carpool/searcher"
    assert headers["traceparent"] == b"00-1-2-01"
    assert "other" not in headers


def test_bytes_read_and_tiers_say_what_the_query_found_in_memory(index: SmallIndex) -> None:
    vectors = questions(2)
    with running(index) as run:
        group = make_group(index, vectors[:1], clusters=[(0, 1)])
        first = run.search(group)["q0-0"]
        later = make_group(index, vectors[1:], clusters=[(1, 2)], sequence=1)
        second = run.search(later)["q1-0"]
        assert run.count("bytes_read_total", purpose="prefetch") == 0
    sizes = [extent.size_bytes for extent in index.extents]
    assert [(p.cluster, p.tier) for p in first.probes] == [(0, "ssd"), (1, "ssd")]
    assert [(p.cluster, p.tier) for p in second.probes] == [(1, "ram"), (2, "ssd")]
    assert (first.bytes_read, second.bytes_read) == (sizes[0] + sizes[1], sizes[2])


def test_top_k_is_the_querys_or_the_default_and_never_more_than_there_is(index: SmallIndex) -> None:
    vectors = questions(1)
    with running(index, top_k_default=4) as run:
        assert len(run.search(make_group(index, vectors))["q0-0"].hits) == 4
        asked = run.search(make_group(index, vectors, top_k=9, sequence=1))
        assert len(asked["q1-0"].hits) == 9
        rows = int((index.assigned == 2).sum())
        every = run.search(make_group(index, vectors, clusters=[(2,)], top_k=100, sequence=2))
        assert len(every["q2-0"].hits) == min(100, rows)


@pytest.mark.parametrize("recall", [None, TUNED], ids=["not tuned", "tuned"])
def test_each_query_has_the_search_that_it_asked_for_and_says_whether_its_recall_was_measured(
    tmp_path: Path, recall: RecallTable | None
) -> None:
    with_codes = random_index(tmp_path, has_codes=True, recall=recall)
    group = make_group(with_codes, questions(3))
    wishes: list[dict[str, Any]] = [{"search_mode": "default", "recall_target": 0.9}]
    wishes += [{"search_mode": "exact"}, {}]
    queries = tuple(
        replace(each, query=replace(each.query, **wish))
        for each, wish in zip(group.queries, wishes, strict=True)
    )
    with running(with_codes) as run:
        found = run.search(replace(group, queries=queries))
    searches = [each.search for _, each in sorted(found.items())]
    assert [each and (each.mode, each.is_calibrated) for each in searches] == [
        ("default", recall is not None),
        ("exact", False),
        ("default", False),
    ]


def test_the_first_query_of_each_next_group_finds_what_was_read_ahead(index: SmallIndex) -> None:
    vector, hints = questions(1)[0], [(0, 1), (5, 6), (2, 3)]
    with running(index) as run:
        for sequence, (clusters, following) in enumerate(pairwise([*hints, None])):
            assert clusters is not None
            group = make_group(
                index, [vector], clusters=[clusters], next_clusters=following, sequence=sequence
            )
            found = run.search(group)[f"q{sequence}-0"]
            assert (found.bytes_read == 0) == (sequence > 0)
        used, late = (
            run.count("prefetches_total", result="used"),
            run.count("prefetches_total", result="late"),
        )
        assert used + late == 4
        assert run.count("prefetches_total", result="wasted") == 0
        # The first group began at once: nothing was read ahead for it.
        assert run.count("bytes_read_total", purpose="demand") == sum(
            index.extents[c].size_bytes for c in (0, 1)
        )


# ---- parts


def test_parts_of_a_group_which_are_done_are_skipped(index: SmallIndex) -> None:
    group = make_group(index, questions(5))
    with running(index) as run:
        run.wait_ready()
        run.stage.offer(make_unit(7, group, parts_done=frozenset({0, 3})), 0)
        run.sink.wait_done(3)
    assert run.sink.parts() == [(7, 1), (7, 2), (7, 4)]
    assert set(run.sink.retrievals()) == {"q0-1", "q0-2", "q0-4"}


def test_a_query_leaves_as_soon_as_it_is_done(index: SmallIndex) -> None:
    gate = Gate(index, held=frozenset({2}))
    with running(index, open_reads=gate) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(2), clusters=[(1,), (2,)])), 0)
        run.sink.wait_done(1)  # while the second still waits for its cluster
        gate.arrived.acquire()
        assert run.sink.parts() == [(0, 0)]
        gate.open()
        run.sink.wait_done(2)
