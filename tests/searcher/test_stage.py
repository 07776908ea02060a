"""The searcher as a stage: real index on disk, real threads, a list as its sink."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.documents import DOCUMENTS_NAME, Document
from carpool.disk.settings import IndexSettings
from carpool.errors import CarpoolError, ConfigError, CorruptionError, DeploymentError
from schemas.topics import ANSWERS, RETRIEVALS
from searcher.scoring_pool import ScoringPool
from searcher.service import parts
from searcher.store.engine import BlockEngine, BlockRead
from searcher.store.files import SegmentFiles
from searcher.store.none import NoEngine
from searcher.store.threads import ThreadEngine
from tests.searcher.helpers import (
    Float32,
    ListSink,
    SmallIndex,
    exact_top_k,
    make_group,
    make_unit,
    normalised,
    random_index,
    running,
    write_index,
)

CLUSTERS = tuple(range(8))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"))


@pytest.fixture
def own_index(tmp_path: Path) -> SmallIndex:
    """One that a test may damage."""
    return random_index(tmp_path / "own")


def questions(count: int, seed: int = 9) -> list[Float32]:
    return list(normalised(np.random.default_rng(seed).standard_normal((count, 16))))


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_us: int) -> None:
        self.now = now_us

    def now_us(self) -> int:
        return self.now


class Gate:
    """An engine that holds every read of some clusters until the gate is opened."""

    def __init__(self, index: SmallIndex, held: frozenset[int] = frozenset(CLUSTERS)) -> None:
        self.clusters = {extent.offset_bytes: extent.cluster for extent in index.extents}
        self.held = held
        self.arrived = threading.Semaphore(0)
        self.opened = threading.Event()
        self.reads: list[int] = []

    def __call__(self, files: SegmentFiles) -> BlockEngine:
        self.files = files
        return ThreadEngine(self.read_block, depth=4, prefetch_depth=2, clock=SystemClock())

    def read_block(self, read: BlockRead) -> None:
        cluster = self.clusters[read.offset_bytes]  # small clusters: one block each
        self.reads.append(cluster)
        if cluster in self.held:
            self.arrived.release()
            assert self.opened.wait(30)
        self.files.read_block(read)


# ---- results


@pytest.mark.parametrize("cache_policy", ["edgerag", "lru"])
@pytest.mark.parametrize("budget", ["one cluster", "three clusters", "everything"])
def test_hits_are_the_exact_top_k_over_the_probed_clusters(index: SmallIndex, budget: str, cache_policy: str) -> None:
    largest = max(extent.size_bytes for extent in index.extents)
    budget_bytes = {"one cluster": largest, "three clusters": 3 * largest, "everything": 1 << 26}[budget]
    vectors = questions(40)
    groups = [
        make_group(index, vectors[at : at + 5], sequence=at, next_clusters=(at % 8, 3, 99)) for at in range(0, 40, 5)
    ]
    with running(index, budget_bytes=budget_bytes, cache_policy=cache_policy, groups_in_hand_max=8) as run:
        found = run.search(*groups)
    for at, vector in enumerate(vectors):
        retrieval = found[f"q{at // 5 * 5}-{at % 5}"]
        rows = exact_top_k(index, vector, index.clusters_of(vector, 3), 5)
        assert [hit.doc_id for hit in retrieval.hits] == [f"d{row}" for row in rows]
        assert [hit.cluster for hit in retrieval.hits] == [index.assigned[row] for row in rows]
        assert [hit.title for hit in retrieval.hits] == [f"Title {row}" for row in rows]
        assert np.allclose([hit.score for hit in retrieval.hits], index.vectors[rows] @ vector, atol=1e-6)
        assert [probe.cluster for probe in retrieval.probes] == list(index.clusters_of(vector, 3))
        assert retrieval.skipped_clusters == ()


def test_a_retrieval_carries_the_query_its_source_and_what_it_took(index: SmallIndex) -> None:
    group = make_group(index, questions(2), top_k=2)
    with running(index) as run:
        retrieval = run.search(group)["q0-1"]
        output = run.sink.outputs()[1]
    grouped = group.queries[1]
    assert retrieval.query == grouped.query
    assert retrieval.source == grouped.source
    assert retrieval.headers == grouped.headers
    assert (retrieval.revision, retrieval.is_final, retrieval.batch_size) == (1, True, 2)
    assert (retrieval.index_version, retrieval.embedding_model) == ("v-test", "model-fingerprint")
    assert list(retrieval.timings_us) == ["window_wait", "queue_search", "load", "search", "passages"]
    assert retrieval.timings_us["window_wait"] == 7
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
    with running(index, prefetch="none", execution="query_by_query") as run:
        found = run.search(make_group(index, vectors, clusters=[(0, 1), (1, 2)]))
    first, second = found["q0-0"], found["q0-1"]
    sizes = [extent.size_bytes for extent in index.extents]
    assert [(p.cluster, p.tier) for p in first.probes] == [(0, "ssd"), (1, "ssd")]
    assert [(p.cluster, p.tier) for p in second.probes] == [(1, "ram"), (2, "ssd")]
    assert (first.bytes_read, second.bytes_read) == (sizes[0] + sizes[1], sizes[2])


def test_times_are_those_of_the_clock(index: SmallIndex) -> None:
    clock = HandClock(5_000_000)
    with running(index, clock=clock) as run:
        retrieval = run.search(make_group(index, questions(1)))["q0-0"]
    # The group was written at 1 ms, by its broker's timestamp.
    assert retrieval.timings_us == {"window_wait": 7, "queue_search": 4_999_000, "load": 0, "search": 0, "passages": 0}
    assert retrieval.completed_us == 5_000_000


def test_top_k_is_the_querys_or_the_default_and_never_more_than_there_is(index: SmallIndex) -> None:
    vectors = questions(1)
    with running(index, top_k_default=4) as run:
        assert len(run.search(make_group(index, vectors))["q0-0"].hits) == 4
        asked = run.search(make_group(index, vectors, top_k=9, sequence=1))
        assert len(asked["q1-0"].hits) == 9
        rows = int((index.assigned == 2).sum())
        every = run.search(make_group(index, vectors, clusters=[(2,)], top_k=100, sequence=2))
        assert len(every["q2-0"].hits) == min(100, rows)


def test_an_empty_cluster_is_searched_like_any_other(tmp_path: Path) -> None:
    vectors = normalised(np.eye(4)[[0, 0, 1]] + 0.01)
    small = write_index(tmp_path / "index", vectors, normalised(np.vstack([np.eye(4)[:2], -np.ones(4)])))
    assert small.extents[2].row_count == 0
    with running(small) as run:
        found = run.search(make_group(small, [vectors[0]] * 2, clusters=[(2, 0), (2,)]))
    assert {hit.doc_id for hit in found["q0-0"].hits} == {"d0", "d1"}
    assert found["q0-1"].hits == ()
    assert found["q0-1"].skipped_clusters == ()


def test_a_cluster_that_is_named_twice_is_scored_once(index: SmallIndex) -> None:
    vector = questions(1)[0]
    with running(index) as run:
        found = run.search(make_group(index, [vector], clusters=[(1, 2, 1)]))
    assert [hit.doc_id for hit in found["q0-0"].hits] == [f"d{r}" for r in exact_top_k(index, vector, (1, 2), 5)]
    assert len(found["q0-0"].probes) == 2


# ---- advice


@pytest.mark.parametrize("advice", ["none", "true", "stale", "wrong", "alien"])
def test_advice_never_changes_a_result(index: SmallIndex, advice: str) -> None:
    vectors = questions(12)
    plain = [make_group(index, vectors[at : at + 3], sequence=at) for at in range(0, 12, 3)]
    chosen: dict[str, Callable[[int], tuple[int, ...] | None]] = {
        "none": lambda _: None,
        "true": lambda n: plain[n + 1].queries[0].clusters if n < 3 else None,
        "stale": lambda n: plain[max(0, n - 1)].queries[0].clusters,
        "wrong": lambda n: (7 - n, n),
        "alien": lambda n: (1000 + n, 7),
    }
    advised = [
        make_group(index, vectors[3 * n : 3 * n + 3], sequence=3 * n, next_clusters=chosen[advice](n)) for n in range(4)
    ]
    largest = max(extent.size_bytes for extent in index.extents)
    with running(index, budget_bytes=4 * largest) as run:
        found: dict[str, Any] = {}
        for group in advised:  # one at a time: nothing but the advice is known of the next
            found = run.search(group)
    for at, vector in enumerate(vectors):
        rows = exact_top_k(index, vector, index.clusters_of(vector, 3), 5)
        assert [hit.doc_id for hit in found[f"q{at // 3 * 3}-{at % 3}"].hits] == [f"d{row}" for row in rows]


def test_the_first_query_of_a_group_finds_what_was_read_ahead(index: SmallIndex) -> None:
    vector = questions(1)[0]
    with running(index) as run:
        run.search(make_group(index, [vector], clusters=[(0, 1)], next_clusters=(5, 6)))
        found = run.search(make_group(index, [vector], clusters=[(5, 6)], sequence=1))["q1-0"]
        assert found.bytes_read == 0
        used, late = run.count("prefetches_total", result="used"), run.count("prefetches_total", result="late")
        assert used + late == 2
        assert run.count("prefetches_total", result="wasted") == 0
        # The first group began at once: nothing was read ahead for it.
        assert run.count("bytes_read_total", purpose="demand") == sum(index.extents[c].size_bytes for c in (0, 1))


def test_without_prefetch_nothing_is_read_ahead(index: SmallIndex) -> None:
    vector = questions(1)[0]
    with running(index, prefetch="none") as run:
        run.search(make_group(index, [vector], clusters=[(0, 1)], next_clusters=(5, 6)))
        found = run.search(make_group(index, [vector], clusters=[(5, 6)], sequence=1))["q1-0"]
        assert [probe.tier for probe in found.probes] == ["ssd", "ssd"]
        assert run.count("bytes_read_total", purpose="prefetch") == 0


def test_the_group_in_hand_wins_over_what_the_grouper_advised(index: SmallIndex) -> None:
    gate = Gate(index, held=frozenset({0}))
    vector = questions(1)[0]
    with running(index, engine=gate, execution="query_by_query") as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, [vector], clusters=[(0,)], next_clusters=(7,))), 0)
        gate.arrived.acquire()
        # Another lane's group comes next, not the advised one; of it part 0 was done in an earlier life.
        other = make_group(index, [vector] * 2, clusters=[(4,), (5,)], sequence=1)
        run.stage.offer(make_unit(1, other, parts_done=frozenset({0})), 0)
        gate.opened.set()
        run.sink.wait_done(2)
    assert gate.reads == [0, 5]


def test_what_is_known_of_the_next_group_is_forgotten_when_it_is_revoked(index: SmallIndex) -> None:
    gate = Gate(index, held=frozenset({0}))
    vector = questions(1)[0]
    with running(index, engine=gate, execution="query_by_query") as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, [vector], clusters=[(0,)], next_clusters=(7,))), 0)
        gate.arrived.acquire()
        run.stage.offer(make_unit(1, make_group(index, [vector], clusters=[(4,)], sequence=1)), 0)
        run.stage.offer(make_unit(2, make_group(index, [vector], clusters=[(5,)], sequence=2)), 0)
        run.stage.revoke(frozenset({1}))
        gate.opened.set()
        run.sink.wait_done(2)
    assert gate.reads == [0, 5]
    assert run.sink.parts() == [(0, 0), (2, 0)]


# ---- parts


def test_a_group_owes_one_part_a_query_and_done_ones_are_skipped(index: SmallIndex) -> None:
    group = make_group(index, questions(5))
    assert parts(group) == 5
    with running(index) as run:
        run.wait_ready()
        run.stage.offer(make_unit(7, group, parts_done=frozenset({0, 3})), 0)
        run.sink.wait_done(3)
    assert run.sink.parts() == [(7, 1), (7, 2), (7, 4)]
    assert set(run.sink.retrievals()) == {"q0-1", "q0-2", "q0-4"}


def test_a_query_leaves_as_soon_as_it_is_done(index: SmallIndex) -> None:
    gate = Gate(index, held=frozenset({2}))
    with running(index, engine=gate) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(2), clusters=[(1,), (2,)])), 0)
        run.sink.wait_done(1)  # while the second still waits for its cluster
        gate.arrived.acquire()
        assert run.sink.parts() == [(0, 0)]
        gate.opened.set()
        run.sink.wait_done(2)


def test_the_same_group_searched_again_gives_records_with_the_same_ids(index: SmallIndex) -> None:
    group = make_group(index, questions(3))
    ids = []
    for _ in range(2):
        with running(index) as run:
            run.search(group)
        ids.append([dict(output.headers)["ce_id"] for output in run.sink.outputs()])
    assert ids[0] == ids[1]


# ---- groups that do not fit this index


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"centroids_fingerprint": "another"}, "centroids another"),
        ({"index_version": "v-other"}, "index version v-other"),
        ({"embedding_model": "other-model"}, "embedding model other-model"),
    ],
)
def test_a_group_of_another_index_stops_the_searcher_and_loses_nothing(
    index: SmallIndex, changes: dict[str, Any], words: str
) -> None:
    with running(index) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(2), **changes)), 0)
        error = run.sink.wait_failure()
        assert isinstance(error, DeploymentError)
        assert words in str(error)
        assert run.stage.not_ready() == (str(error),)
        assert run.stage.credit().records == 0
    assert run.sink.dones == []


def test_a_vector_of_another_dimension_or_a_cluster_that_does_not_exist_is_a_deployment_fault(
    index: SmallIndex,
) -> None:
    short = normalised(np.ones((1, 8)))[0]
    for group, words in (
        (make_group(index, [short], clusters=[(1,)]), "32 bytes; 16 float32"),
        (make_group(index, questions(1), clusters=[(1, 8)]), "not among the 8"),
        (make_group(index, questions(1), clusters=[(-1,)]), "not among the 8"),
    ):
        with running(index) as run:
            run.wait_ready()
            run.stage.offer(make_unit(0, group), 0)
            error = run.sink.wait_failure()
            assert isinstance(error, DeploymentError)
            assert words in str(error)


# ---- deadlines


def test_an_expired_query_is_answered_expired_and_not_searched(index: SmallIndex) -> None:
    clock = HandClock(9_000_000)
    with running(index, clock=clock) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(1), deadline_us=9_000_000)), 0)
        run.stage.offer(make_unit(1, make_group(index, questions(1), deadline_us=9_000_001, sequence=1)), 0)
        run.sink.wait_done(2)
        assert run.count("answers_total", stage="searcher", status="expired") == 1
    answer = run.sink.answers()["q0-0"]
    assert (answer.status, answer.is_final, answer.source) == (
        "expired",
        True,
        make_group(index, questions(1)).queries[0].source,
    )
    assert answer.error is not None
    assert (answer.error.type, answer.error.stage, answer.error.retryable) == ("expired", "searcher", True)
    assert run.sink.parts() == [(0, 0), (1, 0)]
    assert run.sink.outputs()[0].topic == ANSWERS.name
    assert run.sink.outputs()[0].key == b"q0-0"
    assert dict(run.sink.outputs()[0].headers)["ce_id"] == b"rag.queries.v1/0/0/answer"
    assert set(run.sink.retrievals()) == {"q1-0"}


def test_a_deadline_that_is_further_away_than_any_wait_is_a_deadline_like_others(index: SmallIndex) -> None:
    gate = Gate(index)
    with running(index, engine=gate) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(1), deadline_us=2**62 * 1_000)), 0)
        gate.arrived.acquire()
        gate.opened.set()
        run.sink.wait_done(1)
        run.stage.offer(make_unit(1, make_group(index, questions(1), sequence=1)), 0)
        run.sink.wait_done(2)
    assert set(run.sink.retrievals()) == {"q0-0", "q1-0"}


def test_what_waits_behind_others_and_expires_is_answered_before_their_turn(index: SmallIndex) -> None:
    clock, gate = HandClock(1_000), Gate(index)
    with running(index, clock=clock, engine=gate, execution="query_by_query", prefetch="none") as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(1))), 0)
        gate.arrived.acquire()
        run.stage.offer(make_unit(1, make_group(index, questions(2), sequence=1)), 0)
        run.stage.offer(make_unit(2, make_group(index, questions(1), sequence=2, deadline_us=2_000)), 0)
        clock.now = 3_000
        gate.opened.set()
        run.sink.wait_done(4)
    assert run.sink.answers()["q2-0"].status == "expired"
    assert [unit for unit, _ in run.sink.parts()] == [0, 2, 1, 1]


def test_a_query_whose_deadline_passes_while_it_is_searched_is_expired_too(index: SmallIndex) -> None:
    clock = HandClock(1_000)

    class Slow(ScoringPool):
        def run(self, *given: Any) -> Any:
            clock.now = 3_000
            return super().run(*given)

    with running(index, clock=clock, pool=Slow) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(1), deadline_us=2_000)), 0)
        run.sink.wait_done(1)
    assert run.sink.answers()["q0-0"].status == "expired"
    assert "1 ms" in run.sink.answers()["q0-0"].error.message  # type: ignore[union-attr]
    assert run.sink.retrievals() == {}


# ---- damage


def test_a_damaged_cluster_is_skipped_and_named_and_the_rest_is_scored(own_index: SmallIndex) -> None:
    own_index.damage(2)
    vector = questions(1)[0]
    with running(own_index) as run:
        found = run.search(make_group(own_index, [vector], clusters=[(1, 2, 3)]))["q0-0"]
        assert run.count("clusters_damaged_total") == 1
    assert found.skipped_clusters == (2,)
    assert [hit.doc_id for hit in found.hits] == [f"d{r}" for r in exact_top_k(own_index, vector, (1, 3), 5)]
    assert [(p.cluster, p.tier) for p in found.probes] == [(1, "ssd"), (2, "ssd"), (3, "ssd")]


def test_a_query_that_finds_only_damage_is_answered_failed_and_the_next_one_is_searched(own_index: SmallIndex) -> None:
    own_index.damage(2)
    own_index.damage(4)
    with running(own_index) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(own_index, questions(2), clusters=[(2, 4), (1, 4)])), 0)
        run.sink.wait_done(2)
    answer = run.sink.answers()["q0-0"]
    assert answer.status == "failed"
    assert answer.error is not None
    assert (answer.error.type, answer.error.retryable) == ("index_damaged", False)
    assert "none of the 2 clusters" in answer.error.message
    assert "carpool index verify" in answer.error.message
    (failure,) = (done.failure for done in run.sink.dones if done.failure)
    assert (failure.query.query_id, failure.is_transient, failure.message) == ("q0-0", False, answer.error.message)
    assert run.sink.retrievals()["q0-1"].skipped_clusters == (4,)


def test_a_segment_that_was_cut_short_while_it_was_open_fails_only_what_needs_its_end(own_index: SmallIndex) -> None:
    with running(own_index) as run:
        run.wait_ready()
        with own_index.segment_path.open("r+b") as file:
            file.truncate(own_index.extents[7].offset_bytes)
        found = run.search(make_group(own_index, questions(1), clusters=[(0, 7)]))["q0-0"]
    assert found.skipped_clusters == (7,)


def test_when_no_cluster_can_be_read_now_the_failure_may_be_retried(index: SmallIndex) -> None:
    with running(index, engine=lambda _: NoEngine(clock=SystemClock()), read_attempts=1) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(1))), 0)
        run.sink.wait_done(1)
    error = run.sink.answers()["q0-0"].error
    assert error is not None
    assert (error.type, error.retryable) == ("index_damaged", True)
    failure = run.sink.dones[0].failure
    assert failure is not None and failure.is_transient
    assert run.count("answers_total", stage="searcher", status="failed") == 0, "it may go round again"


def test_a_query_that_brought_a_vector_travels_on_with_it(index: SmallIndex) -> None:
    """Whoever sends it round again needs it; one that brought none is embedded again by its text."""
    group = make_group(index, questions(2))
    mine = msgspec.structs.replace(group.queries[0].query, embedding_model=group.embedding_model)
    queries = (msgspec.structs.replace(group.queries[0], query=mine), group.queries[1])
    with running(index) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, msgspec.structs.replace(group, queries=queries)), 0)
        run.sink.wait_done(2)
    found = run.sink.retrievals()
    assert found["q0-0"].query.vector == group.queries[0].vector
    assert found["q0-1"].query.vector is None


def test_a_damaged_passage_fails_its_query(own_index: SmallIndex) -> None:
    with running(own_index) as run:
        run.wait_ready()
        documents = own_index.dir / DOCUMENTS_NAME
        documents.write_bytes(bytes(len(documents.read_bytes())))
        run.stage.offer(make_unit(0, make_group(own_index, questions(1))), 0)
        run.sink.wait_done(1)
    answer = run.sink.answers()["q0-0"]
    assert answer.error is not None
    assert (answer.status, answer.error.type, answer.error.retryable) == ("failed", "index_damaged", False)
    assert "passages" in answer.error.message


def test_a_retrieval_that_its_topic_would_not_take_is_refused_in_words(tmp_path: Path) -> None:
    vectors = normalised(np.random.default_rng(2).standard_normal((6, 4)))
    documents = [Document(doc_id=f"d{row}", title="long", text="x" * 1_000_000) for row in range(6)]
    large = write_index(tmp_path / "index", vectors, normalised(np.ones((1, 4))), documents=documents)
    with running(large) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(large, [vectors[0]], nprobe=1, top_k=5)), 0)
        run.stage.offer(make_unit(1, make_group(large, [vectors[0]], nprobe=1, top_k=4, sequence=1)), 0)
        run.sink.wait_done(2)
    error = run.sink.answers()["q0-0"].error
    assert error is not None
    assert (error.type, error.retryable) == ("too_large", False)
    assert "smaller top_k" in error.message
    assert len(run.sink.retrievals()["q1-0"].hits) == 4


# ---- the loop's side


def test_there_is_no_credit_before_the_index_is_open_and_it_says_so(index: SmallIndex) -> None:
    run = running(index)
    assert run.stage.not_ready() == ("the index is being opened",)
    assert run.stage.credit().records == 0
    assert run.stage.credit().size_bytes == 0
    with run:
        run.wait_ready()
        assert run.stage.credit().records == 256
        assert run.stage.not_ready() == ()
    assert run.stage.credit().records == 0
    assert run.stage.not_ready() == ("the searcher is closing",)


def test_credit_counts_the_groups_in_hand_and_their_bytes(index: SmallIndex) -> None:
    gate = Gate(index)
    with running(index, engine=gate, groups_in_hand_max=3, intake_bytes_max=8 << 20) as run:
        run.wait_ready()
        for number in range(2):
            run.stage.offer(make_unit(number, make_group(index, questions(1)), size_bytes=1_000), 0)
        gate.arrived.acquire()
        credit = run.stage.credit()
        assert (credit.records, credit.size_bytes) == (1, (8 << 20) - 2_000)
        run.stage.offer(make_unit(2, make_group(index, questions(1)), size_bytes=9 << 20), 0)
        credit = run.stage.credit()
        assert (credit.records, credit.size_bytes) == (0, 0)
        assert run.stage.tick(0, 5) is None
        gate.opened.set()
        run.sink.wait_done(3)


def test_there_is_no_credit_once_as_many_queries_are_in_hand_as_may_be(index: SmallIndex) -> None:
    gate = Gate(index)
    with running(index, engine=gate, queries_in_hand_max=4) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(3))), 0)
        assert run.stage.credit().records > 0
        run.stage.offer(make_unit(1, make_group(index, questions(3), sequence=1)), 0)
        assert run.stage.credit().records == 0
        gate.opened.set()
        run.sink.wait_done(6)
        assert run.stage.credit().records > 0


def test_a_revoked_group_is_forgotten_also_while_it_is_searched(index: SmallIndex) -> None:
    gate = Gate(index)
    with running(index, engine=gate) as run:
        run.wait_ready()
        for number in range(3):
            run.stage.offer(make_unit(number, make_group(index, questions(2), sequence=number)), 0)
        gate.arrived.acquire()
        run.stage.revoke(frozenset({0, 1}))
        assert run.stage.credit().records == 255  # one left
        gate.opened.set()
        run.sink.wait_done(2)
    assert run.sink.parts() == [(2, 0), (2, 1)]


def test_what_is_in_hand_is_finished_while_draining(index: SmallIndex) -> None:
    with running(index) as run:
        run.wait_ready()
        for number in range(3):
            run.stage.offer(make_unit(number, make_group(index, questions(2), sequence=number)), 0)
        run.stage.drain(1)
        run.sink.wait_done(6)


def test_closing_while_a_read_hangs_returns_and_hands_over_nothing_half_done(index: SmallIndex) -> None:
    gate = Gate(index, held=frozenset({1}))
    run = running(index, engine=gate)
    run.stage.start(run.sink)
    run.wait_ready()
    run.stage.offer(make_unit(0, make_group(index, questions(2), clusters=[(0, 1), (0, 1)])), 0)
    gate.arrived.acquire()
    run.stage.close()
    gate.opened.set()
    assert run.sink.dones == []
    assert run.sink.failures == []


def test_it_closes_before_it_was_started_and_while_it_opens(index: SmallIndex) -> None:
    running(index).stage.close()
    run = running(index)
    run.stage.start(run.sink)
    run.stage.close()
    assert run.sink.failures == []


# ---- what is wrong at start


def failure_at_start(run: Any) -> CarpoolError:
    sink: ListSink = run.sink
    run.stage.start(sink)
    error = sink.wait_failure()
    assert run.stage.not_ready() == (str(error),)
    run.stage.close()
    return error


def test_a_missing_index_is_refused_with_what_to_do(index: SmallIndex, tmp_path: Path) -> None:
    run = running(index)
    elsewhere = running(SmallIndex(**{**index.__dict__, "dir": tmp_path / "nowhere"}))
    error = failure_at_start(elsewhere)
    assert isinstance(error, ConfigError)
    assert "carpool index build" in str(error)
    assert IndexSettings(dir="x").dir == "x"
    run.stage.close()


def test_a_budget_below_the_largest_cluster_is_refused_with_the_number_that_it_takes(index: SmallIndex) -> None:
    largest = max(extent.size_bytes for extent in index.extents)
    error = failure_at_start(running(index, budget_bytes=largest - 1))
    assert isinstance(error, ConfigError)
    assert f"at least {largest}" in str(error)


def test_a_budget_that_the_machine_does_not_have_is_refused_with_what_to_do(index: SmallIndex) -> None:
    error = failure_at_start(running(index, budget_bytes=1 << 60))
    assert isinstance(error, ConfigError)
    assert f"budget_bytes is {1 << 60}" in str(error)
    assert "Set it lower" in str(error)


def test_a_damaged_manifest_is_refused(own_index: SmallIndex) -> None:
    manifest = own_index.dir / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"nlist": 8', b'"nlist": 9'))
    assert isinstance(failure_at_start(running(own_index)), CorruptionError)


def test_a_fault_of_our_own_ends_the_service_instead_of_hanging_it(index: SmallIndex) -> None:
    class Broken(ScoringPool):
        def run(self, *given: Any) -> Any:
            raise ZeroDivisionError("a bug")

    with running(index, pool=Broken) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(1))), 0)
        error = run.sink.wait_failure()
    assert type(error) is CarpoolError
    assert "a bug" in str(error)
