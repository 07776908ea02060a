"""Drafts: what a long search has found so far, nearest clusters first; results stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from carpool.clock import SystemClock
from carpool.disk.documents import Passage
from schemas.query import Generation
from searcher.drafts import DRAFT_HITS_MAX, DraftRecords
from searcher.executor import SearchDraft
from searcher.plan.cluster_steps import Joined, Wanted
from searcher.plan.read_speed import ReadSpeed
from searcher.scoring.top_k import TopK
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageReads, ThreadPageReads
from searcher.store.reader import OpenReads
from searcher.store.waker import Waker
from tests.rig.faulty_disk import FaultyDisk, SlowDisk
from tests.searcher.cluster_worlds import ids, world
from tests.searcher.helpers import SmallIndex, exact_top_k, make_group, running
from tests.searcher.stage import questions

NPROBE = 8
READ_S = 0.02
"""How long a cluster takes on the slow disk: much longer than anything else."""


def slow_disk(index: SmallIndex) -> OpenReads:
    mean_bytes = float(np.mean([extent.size_bytes for extent in index.extents]))

    def opened(files: SegmentFiles, waker: Waker) -> PageReads:
        reads = ThreadPageReads(files, waker, SystemClock(), 1)  # one read after another
        return FaultyDisk(reads, waker, SlowDisk(mean_bytes / READ_S))

    return opened


@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 10**7)), min_size=1))
def test_the_expected_time_lies_between_the_fastest_and_the_slowest_read(
    reads: list[tuple[int, int]],
) -> None:
    speed, now_us = ReadSpeed(), 0
    assert speed.expected_us(10**6) == 0
    for size_bytes, took_us in reads:
        now_us += 5_000_000  # a pause does not count
        speed.began(now_us)
        now_us += took_us
        speed.ended(size_bytes, now_us)
    paces = [took_us / size_bytes for size_bytes, took_us in reads]
    assert min(paces) * 10**6 * 0.999 - 1 <= speed.expected_us(10**6)
    assert speed.expected_us(10**6) <= max(paces) * 10**6 * 1.001 + 1


def test_drafts_are_the_exact_best_of_the_nearest_clusters(index: SmallIndex) -> None:
    vectors = questions(2)
    with running(index, drafts_after_ms=1, open_reads=slow_disk(index), top_k_default=12) as run:
        clusters = index.clusters_of(vectors[0], NPROBE)
        run.search(make_group(index, vectors[:1], clusters=[clusters[:1]]))  # the disk is slow
        assert run.sink.drafts() == []
        group = make_group(index, vectors[1:], nprobe=NPROBE, sequence=1)
        final = run.search(group)["q1-0"]
        drafts = run.sink.drafts()
        assert run.count("drafts_total") == len(drafts)
    clusters = index.clusters_of(vectors[1], NPROBE)
    absent = [cluster for cluster in clusters if cluster != index.clusters_of(vectors[0], 1)[0]]
    assert [draft.revision for draft in drafts] == list(range(1, len(drafts) + 1))
    done = [draft.clusters_done or 0 for draft in drafts]
    assert len(done) >= 3 and done == sorted(set(done)) and done[-1] < NPROBE
    resident = [cluster for cluster in clusters if cluster not in absent]
    for draft in drafts:
        assert (draft.is_final, draft.clusters_total) == (False, NPROBE)
        assert draft.query.query_id == "q1-0" and draft.source == final.source
        near = [*resident, *absent][: draft.clusters_done]  # what was in memory is scored first
        rows = exact_top_k(index, vectors[1], near, DRAFT_HITS_MAX)
        assert [hit.doc_id for hit in draft.hits] == [f"d{row}" for row in rows]
        assert all(hit.text for hit in draft.hits)
    assert len(final.hits) == 12 and (final.is_final, final.revision) == (True, 1)


def test_a_passage_is_read_once_while_it_stays_in_the_drafts(index: SmallIndex) -> None:
    read: list[int] = []

    class Reader:
        def read(self, rows: list[list[int]]) -> list[tuple[int, list[Passage]]]:
            read.extend(rows[0])
            return [(0, [Passage(doc_id=f"d{row}", title="", text="t") for row in rows[0]])]

    records, group = DraftRecords(), make_group(index, questions(1), nprobe=NPROBE)
    for done, rows in enumerate(([3, 5], [3, 5, 7], [7, 5], [3, 7]), 1):
        best = TopK(np.ones(len(rows), np.float32), np.array(rows), np.zeros(len(rows), np.int64))
        found = SearchDraft(best=best, clusters_done=done, clusters_total=NPROBE)
        assert records.output(1, group, 0, found, Reader(), 0) is not None  # type: ignore[arg-type]
    assert read == [3, 5, 7, 3]
    records.keep_only(())  # the search has ended: nothing is kept of it
    assert records.output(1, group, 0, found, Reader(), 0) is not None  # type: ignore[arg-type]
    assert read == [3, 5, 7, 3, 3, 7]


@pytest.mark.parametrize("why", ["off", "short", "a quote is asked for"])
def test_there_are_no_drafts(index: SmallIndex, why: str) -> None:
    after_ms = {"off": 0, "short": 600_000}.get(why, 1)
    vectors = questions(2)
    with running(index, drafts_after_ms=after_ms, open_reads=slow_disk(index)) as run:
        run.search(make_group(index, vectors[:1], clusters=[(0,)]))
        group = make_group(index, vectors[1:], nprobe=NPROBE, sequence=1)
        if why.startswith("a quote"):
            (grouped,) = group.queries
            query = replace(grouped.query, generation=Generation(extractive=True))
            group = replace(group, queries=(replace(grouped, query=query),))
        run.search(group)
        assert run.sink.hints == []


def test_a_query_that_sends_drafts_reads_its_nearest_slices_first() -> None:
    here = world([10] * 6, 100)
    near, shared = (Wanted(query=0, slices=ids((4, 1, 0)), is_nearest_first=True), (0, 1, 2, 3))
    here.tell(Joined(queries=(near, Wanted(query=1, slices=ids(shared))), horizon=None))
    assert here.reads[:3] == [4, 1, 0], "although another query wants 0 and 1, too"
