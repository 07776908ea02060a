"""The grouper as a stage, with a real index's centroids, a list for a sink and a clock that is moved by hand."""

from __future__ import annotations

import itertools
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, probe, read_centroids, write_centroids
from carpool.disk.manifest import FileEntry, Manifest, read_manifest, write_manifest
from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings, HashingEmbedder
from carpool.errors import CarpoolError, ConfigError
from carpool.kafka.stage import Credit, Done, Message, Output, Unit
from carpool.telemetry.metrics import Metrics
from grouper.load import index_facts, load_work
from grouper.plan.orders import group_order
from grouper.plan.policies import GroupingPolicy, PolicyName, grouping_policy
from grouper.records import group_event_id
from grouper.service import LEAD_US, GrouperStage, build_stage
from grouper.settings import GrouperSettings
from grouper.work import WindowWork
from schemas.answer import Answer
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.group import Group
from schemas.query import Query
from schemas.record import Source, header
from schemas.topics import ANSWERS, GROUPS

DIMENSION = 64
NLIST = 8
EMBEDDER = HashingEmbedder(DIMENSION)
NOW_US = 1_800_000_000_000_000
WORDS = ("ada", "bell", "curie", "darwin", "euler", "faraday", "gauss", "hopper")
SETTINGS = GrouperSettings(window_queries_min=2, window_queries_max=4, intake_queries_max=10, window_ms_max=100)


class HandClock:
    """A clock that stands still unless a test moves it, or `step_us` moves it at each look."""

    def __init__(self, step_us: int = 0) -> None:
        self.time_us = NOW_US
        self.step_us = step_us

    def now_us(self) -> int:
        self.time_us += self.step_us
        return self.time_us


class ListSink:
    """Keeps what a stage hands over, and lets a test wait for it."""

    def __init__(self) -> None:
        self.dones: list[Done] = []
        self.refusals: list[tuple[Unit[Query], RecordError]] = []
        self.failures: list[CarpoolError] = []

    def done(self, done: Done) -> None:
        self.dones.append(done)

    def hint(self, output: Output) -> None:
        raise AssertionError("the grouper sends no hints")

    def refuse(self, unit: Unit[Query], error: RecordError) -> None:
        self.refusals.append((unit, error))

    def fail(self, error: CarpoolError) -> None:
        self.failures.append(error)

    @property
    def acknowledged(self) -> list[int]:
        return [unit_id for done in self.dones for unit_id, _ in done.parts]

    @property
    def groups(self) -> list[Group]:
        outputs = [output for done in self.dones for output in done.outputs if output.topic == GROUPS.name]
        return [decode(Group, output.value, output.headers) for output in outputs]


class Gate(HashingEmbedder):
    """The hashing embedder behind a gate: a test sees a batch come and lets it through."""

    def __init__(self) -> None:
        super().__init__(DIMENSION)
        self.batches: list[list[str]] = []
        self.opened = threading.Semaphore(0)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        assert self.opened.acquire(timeout=20)
        return super().encode(texts)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 seconds for nothing"
        time.sleep(0.001)


def write_index(folder: Path, embedder: HashingEmbedder = EMBEDDER) -> Manifest:
    """The part of an index that the grouper reads: manifest and centroids, through the real writers."""
    centroids = embedder.encode(WORDS)
    write_centroids(folder, centroids)
    content = (folder / CENTROIDS_NAME).read_bytes()
    manifest = Manifest(
        format="v1",
        index_version="v-1",
        dimension=embedder.dimension,
        metric="inner_product",
        nlist=NLIST,
        codec="Flat",
        vector_dtype="float32",
        page_bytes=4096,
        segment_count=1,
        generation=1,
        documents_generation=1,
        embedding_model=embedder.fingerprint,
        embedding_model_name=f"hashing:{embedder.dimension}",
        centroids_fingerprint=centroids_fingerprint(centroids),
        row_count=NLIST,
        nprobe_default=3,
        files={CENTROIDS_NAME: FileEntry(size_bytes=len(content), crc32=zlib.crc32(content))},
    )
    write_manifest(folder, manifest)
    return manifest


class Rig:
    """A running stage over an index in `folder`."""

    def __init__(
        self, folder: Path, *, settings: GrouperSettings = SETTINGS, embedder: HashingEmbedder | None = None,
        policy: GroupingPolicy | None = None, clock: HandClock | None = None,
    ) -> None:  # fmt: skip
        self.clock = clock or HandClock()
        self.sink = ListSink()
        self.metrics = Metrics()
        self.units = 0

        def load() -> WindowWork:
            manifest = read_manifest(folder)
            return WindowWork(
                facts=index_facts(manifest, settings.nprobe),
                centroids=read_centroids(folder, manifest),
                embedder=embedder or EMBEDDER,
                policy=policy
                or grouping_policy(settings.policy, jaccard_similarity_min=settings.jaccard_similarity_min),
                order=group_order(settings.order),
                grouper="test",
                lane_count=1,
                group_bytes_max=settings.group_bytes_max,
                clock=self.clock,
                metrics=self.metrics,
            )

        self.stage = GrouperStage(settings=settings, load=load, clock=self.clock)

    def unit(self, query: Query, *, value: bytes = b"x" * 90, published_us: int | None = None) -> Unit[Query]:
        self.units += 1
        timestamp_ms = (self.clock.time_us if published_us is None else published_us) // 1_000
        source = Source(topic="rag.queries.v1", partition=1, offset=self.units, timestamp_ms=timestamp_ms)
        message = Message(
            source=source, key=None, value=value, headers=(("traceparent", b"00-1"),), received_us=self.clock.time_us
        )
        return Unit(id=self.units, record=query, message=message)

    def offer(self, *texts: str, **wishes: object) -> list[Unit[Query]]:
        units = [
            self.unit(Query(query_id=f"q-{self.units + 1}", text=text, **wishes))  # type: ignore[arg-type]
            for text in texts
        ]
        for unit in units:
            self.stage.offer(unit, self.clock.time_us)
        return units

    def tick(self, waiting: int = 0) -> int | None:
        return self.stage.tick(self.clock.time_us, waiting)

    def settled(self, count: int) -> None:
        until(lambda: len(self.sink.acknowledged) >= count)
        until(lambda: not self.stage._held)
        self.stage.check_integrity()


@contextmanager
def running(folder: Path, **options: object) -> Iterator[Rig]:
    if not (folder / CENTROIDS_NAME).exists():
        write_index(folder)
    rig = Rig(folder, **options)  # type: ignore[arg-type]
    rig.stage.start(rig.sink)
    try:
        until(lambda: not rig.stage.not_ready() or bool(rig.sink.failures))
        yield rig
    finally:
        rig.stage.close()
        assert not any(thread.is_alive() for thread in rig.stage._threads)


def test_a_query_comes_out_as_a_group_with_all_that_the_searcher_needs(tmp_path: Path) -> None:
    manifest = write_index(tmp_path)
    with running(tmp_path) as rig:
        (unit,) = rig.offer("who was curie", deadline=NOW_US // 1_000 + 60_000, top_k=5)
        assert rig.tick() == NOW_US + 60_000_000, "its deadline"
        rig.settled(1)
        (done,) = rig.sink.dones
        (output,) = done.outputs
        assert done.parts == ((unit.id, 0),)
        assert (output.topic, output.partition, output.key) == (GROUPS.name, 0, None)
        (group,) = rig.sink.groups
        assert (group.index_version, group.centroids_fingerprint) == ("v-1", manifest.centroids_fingerprint)
        assert group.embedding_model == EMBEDDER.fingerprint
        assert (group.lane, group.lane_count, group.sequence, group.groups_in_window_for_lane) == (0, 1, 0, 1)
        assert (group.window_id, group.next) == (0, None)
        (query,) = group.queries
        vector = EMBEDDER.encode(["who was curie"])
        assert query.query == unit.record
        assert (query.source, query.headers) == (unit.source, unit.message.headers)
        assert (query.arrival_us, query.deadline_us) == (NOW_US, NOW_US + 60_000_000)
        assert query.vector == vector.astype("<f4").tobytes()
        assert query.clusters == tuple(probe(EMBEDDER.encode(WORDS), vector, 3)[0].tolist())
        assert group.clusters == tuple(sorted(query.clusters))


def test_a_vector_travels_normalised_and_no_longer_in_the_query(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        vector = EMBEDDER.encode(["gauss"])[0]
        content = (vector * 7).astype("<f4").tobytes()
        query = Query(query_id="q-1", vector=content, embedding_model=EMBEDDER.fingerprint, nprobe=1)
        rig.stage.offer(rig.unit(query), NOW_US)
        rig.tick()
        rig.settled(1)
        (grouped,) = rig.sink.groups[0].queries
        assert grouped.query.vector is None
        assert grouped.query.embedding_model == EMBEDDER.fingerprint
        assert np.frombuffer(grouped.vector, dtype="<f4") == pytest.approx(vector)
        assert grouped.clusters == (WORDS.index("gauss"),)


def test_each_query_probes_as_many_clusters_as_it_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, settings=GrouperSettings(policy="none")) as rig:
        rig.offer("ada")
        rig.offer("ada", nprobe=5)
        rig.offer("ada", nprobe=1)
        rig.tick()
        rig.settled(3)
        clusters = [group.queries[0].clusters for group in rig.sink.groups]
        assert [len(found) for found in clusters] == [3, 5, 1]
        assert clusters[1][:3] == clusters[0]
        assert clusters[1][:1] == clusters[2] == (0,)


@pytest.mark.parametrize("policy", ["whole", "none", "greedy", "agglomerative"])
def test_queries_of_a_window_are_grouped_by_what_they_probe(tmp_path: Path, policy: PolicyName) -> None:
    settings = GrouperSettings(policy=policy, order="arrival", nprobe=1)
    with running(tmp_path, settings=settings) as rig:
        texts = ["ada", "bell", "ada ada", "curie", "bell bell"]
        units = rig.offer(*texts)
        rig.tick()
        rig.settled(5)
        groups = rig.sink.groups
        expected = {"whole": [[0, 1, 2, 3, 4]], "none": [[0], [1], [2], [3], [4]]}.get(policy, [[0, 2], [1, 4], [3]])
        assert [
            [units.index(next(u for u in units if u.source == q.source)) for q in g.queries] for g in groups
        ] == expected
        assert [[unit_id - 1 for unit_id, _ in done.parts] for done in rig.sink.dones] == expected
        assert [group.sequence for group in groups] == list(range(len(expected)))
        assert {group.groups_in_window_for_lane for group in groups} == {len(expected)}
        for group, following in itertools.pairwise(groups):
            assert group.next is not None
            assert group.next.query_id == following.queries[0].query.query_id
            assert group.next.clusters == following.queries[0].clusters
        assert groups[-1].next is None


def test_all_texts_of_a_window_are_embedded_in_one_batch(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        rig.offer("ada", "bell", "curie")
        gate.opened.release()
        rig.tick()
        rig.settled(3)
        assert gate.batches == [["ada", "bell", "curie"]]


def test_while_the_worker_is_busy_arrivals_gather_and_leave_together_when_it_is_free(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        rig.offer("ada")
        rig.tick()
        until(lambda: len(gate.batches) == 1)
        for word in ("bell", "curie", "darwin"):
            rig.offer(word)
            assert rig.tick() is None
        assert gate.batches == [["ada"]]
        gate.opened.release(2)
        rig.settled(4)
        assert gate.batches == [["ada"], ["bell", "curie", "darwin"]]
        assert sorted({group.window_id for group in rig.sink.groups}) == [0, 1]


def test_a_worker_that_becomes_free_between_offers_waits_for_their_tick(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        rig.offer("ada")
        rig.tick()
        until(lambda: len(gate.batches) == 1)
        rig.offer("bell")
        gate.opened.release(2)
        rig.settled(1)
        assert gate.batches == [["ada"]], "more of this batch may be on its way: the tick after it says how many"
        rig.offer("curie")
        rig.tick()
        rig.settled(3)
        assert gate.batches == [["ada"], ["bell", "curie"]]


def test_a_window_never_holds_more_than_its_most(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        rig.offer(*[f"word{n}" for n in range(10)])
        rig.tick()
        rig.settled(10)
        sizes: dict[int, int] = {}
        for group in rig.sink.groups:
            sizes[group.window_id] = sizes.get(group.window_id, 0) + len(group.queries)
        assert sizes == {0: 4, 1: 4, 2: 2}
        assert sorted(rig.sink.acknowledged) == list(range(1, 11))
        assert [group.sequence for group in rig.sink.groups] == list(range(len(rig.sink.groups)))


def test_under_a_backlog_the_tick_says_when_the_window_is_due(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        rig.offer("ada", "bell")
        assert rig.tick(waiting=5) == NOW_US + 100_000
        rig.clock.time_us += 100_000
        assert rig.tick(waiting=5) is None
        rig.settled(2)


def test_where_groups_leave_with_a_commit_a_window_closes_just_in_time_for_it(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        rig.offer("ada")
        assert rig.stage.tick(NOW_US, 0, NOW_US + 40_000) == NOW_US + 40_000 - LEAD_US
        rig.offer("bell")
        rig.clock.time_us += 39_500
        assert rig.stage.tick(rig.clock.time_us, 0, NOW_US + 40_000) is None
        rig.settled(2)
        assert [len(group.queries) for group in rig.sink.groups] in ([2], [1, 1]), "one window"
        assert {group.window_id for group in rig.sink.groups} == {0}
        rig.offer("curie")
        rig.stage.drain(rig.clock.time_us + 1_000_000)
        assert rig.stage.tick(rig.clock.time_us, 0, rig.clock.time_us + 40_000) is None, (
            "drained, nothing is waited for"
        )
        rig.settled(3)


def test_a_window_closes_sooner_before_a_commit_the_longer_the_last_one_took(tmp_path: Path) -> None:
    with running(tmp_path, clock=HandClock(step_us=100)) as rig:
        rig.offer("ada")
        rig.tick()
        rig.settled(1)
        rig.offer("bell")
        leaves_us = rig.clock.time_us + 40_000
        wake_us = rig.stage.tick(rig.clock.time_us, 0, leaves_us)
        assert wake_us is not None and leaves_us - LEAD_US - 2_000 < wake_us < leaves_us - LEAD_US


def test_records_that_cannot_be_taken_in_are_not_waited_for(tmp_path: Path) -> None:
    with running(tmp_path, settings=GrouperSettings(intake_bytes_max=256 * 1024)) as rig:
        unit = rig.unit(Query(query_id="q-1", text="ada"), value=b"x" * 256 * 1024)
        rig.stage.offer(unit, NOW_US)
        assert rig.stage.credit() == Credit(records=799, size_bytes=0)
        assert rig.tick(waiting=1_000) is None
        rig.settled(1)
        assert rig.stage.credit() == Credit(records=800, size_bytes=256 * 1024)


def test_credit_counts_what_gathers_and_what_is_in_hand(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        total = rig.stage.credit()
        assert total == Credit(records=10, size_bytes=32 * 1024 * 1024)
        (unit,) = rig.offer("ada")
        size_bytes = unit.message.size_bytes
        assert size_bytes == 90 + len("traceparent") + 4
        assert rig.stage.credit() == Credit(records=9, size_bytes=total.size_bytes - size_bytes)
        rig.tick()
        until(lambda: len(gate.batches) == 1)
        rig.offer("bell")
        assert rig.stage.credit() == Credit(records=8, size_bytes=total.size_bytes - 2 * size_bytes)
        rig.tick()
        gate.opened.release(2)
        rig.settled(2)
        assert rig.stage.credit() == total


def test_a_full_intake_gives_no_credit(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        rig.offer("ada")
        rig.tick()
        rig.offer(*["bell"] * 9)
        assert rig.stage.credit().records == 0
        gate.opened.release(4)
        rig.tick()
        rig.settled(10)


def test_revoked_queries_are_forgotten_in_the_window_and_in_hand(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        first, second = rig.offer("ada", "bell")
        rig.tick()
        until(lambda: len(gate.batches) == 1)
        third, fourth = rig.offer("curie", "darwin")
        rig.stage.revoke(frozenset({first.id, fourth.id, 999}))
        rig.stage.check_integrity()
        assert rig.stage.credit().records == 8
        rig.tick()
        gate.opened.release(2)
        rig.settled(2)
        assert sorted(rig.sink.acknowledged) == [second.id, third.id]
        assert gate.batches == [["ada", "bell"], ["curie"]]


def test_a_window_that_is_revoked_whole_makes_no_group(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        (unit,) = rig.offer("ada")
        rig.tick()
        until(lambda: len(gate.batches) == 1)
        rig.stage.revoke(frozenset({unit.id}))
        gate.opened.release(2)
        until(lambda: not rig.stage._held)
        assert rig.sink.dones == []
        (again,) = rig.offer("ada")
        rig.tick()
        rig.settled(1)
        assert rig.sink.acknowledged == [again.id]


def test_a_unit_offered_again_is_planned_again(tmp_path: Path) -> None:
    """The loop discards a group that holds a revoked query, and offers the others once more."""
    with running(tmp_path) as rig:
        (unit,) = rig.offer("ada")
        rig.tick()
        rig.settled(1)
        rig.stage.offer(unit, NOW_US)
        rig.tick()
        rig.settled(2)
        assert rig.sink.acknowledged == [unit.id, unit.id]
        assert rig.sink.dones[0].outputs[0].headers == rig.sink.dones[1].outputs[0].headers, "under the same id"
        assert [group.window_id for group in rig.sink.groups] == [0, 1]


def test_draining_closes_the_window_although_more_is_waiting(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        rig.offer("ada")
        assert rig.tick(waiting=7) == NOW_US + 400_000
        rig.stage.drain(NOW_US + 10_000_000)
        assert rig.tick(waiting=7) is None
        rig.settled(1)


def test_an_expired_query_gets_its_terminal_answer_and_is_not_embedded(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        gate.opened.release()
        (late,) = rig.offer("ada", deadline=NOW_US // 1_000)
        (fine,) = rig.offer("bell", deadline=NOW_US // 1_000 + 1)
        rig.tick()
        rig.settled(2)
        assert gate.batches == [["bell"]]
        expired = next(done for done in rig.sink.dones if done.parts == ((late.id, 0),))
        (output,) = expired.outputs
        assert (output.topic, output.key, output.partition) == (ANSWERS.name, b"q-1", None)
        assert header(output.headers, "ce_id") == b"rag.queries.v1/1/1/answer"
        assert header(output.headers, "traceparent") == b"00-1"
        answer = decode(Answer, output.value, output.headers)
        assert (answer.query_id, answer.status, answer.source) == ("q-1", "expired", late.source)
        assert answer.error is not None
        assert (answer.error.type, answer.error.stage, answer.error.retryable) == ("expired", "grouper", True)
        assert [query.source for group in rig.sink.groups for query in group.queries] == [fine.source]
        assert rig.metrics.registry.get_sample_value(
            "carpool_answers_total", {"stage": "grouper", "status": "expired"}
        ) == 1  # fmt: skip


def test_a_query_that_expires_while_it_is_embedded_is_not_searched(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        rig.offer("ada", deadline=NOW_US // 1_000 + 5)
        rig.offer("bell")
        rig.tick()
        until(lambda: len(gate.batches) == 1)
        rig.clock.time_us += 5_000
        gate.opened.release()
        rig.settled(2)
        assert [done.outputs[0].topic for done in rig.sink.dones] == [ANSWERS.name, GROUPS.name]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (Query(query_id="q", vector=b"\x00\x00\x80\x3f" * 3, embedding_model=EMBEDDER.fingerprint), "wrong_dimension"),
        (Query(query_id="q", vector=b"\x00\x00\x80\x3f" * DIMENSION, embedding_model="another"), "wrong_model"),
        (Query(query_id="q", text="ada", nprobe=NLIST + 1), "invalid_value"),
    ],
)
def test_a_query_that_does_not_fit_is_refused_and_the_ones_around_it_are_grouped(
    tmp_path: Path, query: Query, reason: str
) -> None:
    with running(tmp_path) as rig:
        rig.offer("ada")
        bad = rig.unit(query)
        rig.stage.offer(bad, NOW_US)
        rig.offer("bell")
        rig.tick()
        rig.settled(2)
        assert [(unit.id, error.reason, error.query_id) for unit, error in rig.sink.refusals] == [(bad.id, reason, "q")]
        assert sorted(rig.sink.acknowledged) == [1, 3]


def test_a_text_that_the_model_fails_on_is_refused_and_its_window_goes_on(tmp_path: Path) -> None:
    class Choking(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if "bell" in texts:
                raise RuntimeError("token out of range")
            return super().encode(texts)

    with running(tmp_path, embedder=Choking(DIMENSION)) as rig:
        rig.offer("ada", "bell", "curie")
        rig.tick()
        rig.settled(2)
        (refusal,) = rig.sink.refusals
        assert (refusal[0].id, refusal[1].reason, refusal[1].query_id) == (2, "processing_failed", "q-2")
        assert "token out of range" in str(refusal[1])
        assert sorted(rig.sink.acknowledged) == [1, 3]
        found = [query for group in rig.sink.groups for query in group.queries]
        assert {query.query.query_id: query.vector for query in found} == {
            "q-1": EMBEDDER.encode(["ada"]).tobytes(),
            "q-3": EMBEDDER.encode(["curie"]).tobytes(),
        }


def test_a_model_that_is_broken_altogether_stops_the_service_and_refuses_nothing(tmp_path: Path) -> None:
    class Broken(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            raise RuntimeError("out of memory")

    with running(tmp_path, embedder=Broken(DIMENSION)) as rig:
        rig.offer("ada", "bell")
        rig.tick()
        until(lambda: bool(rig.sink.failures))
        assert isinstance(rig.sink.failures[0], ConfigError)
        assert "out of memory" in str(rig.sink.failures[0])
        assert (rig.sink.refusals, rig.sink.dones) == ([], [])
        assert rig.stage.credit() == Credit(records=0, size_bytes=0)
        assert rig.stage.not_ready() == (str(rig.sink.failures[0]),)


def test_a_defect_while_planning_stops_the_service_and_says_so(tmp_path: Path) -> None:
    class Faulty:
        name: PolicyName = "none"

        def group(self, similarity: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
            raise ZeroDivisionError("a defect")

    with running(tmp_path, policy=Faulty()) as rig:
        rig.offer("ada", "bell")
        rig.tick()
        until(lambda: bool(rig.sink.failures))
        assert "ZeroDivisionError: a defect" in str(rig.sink.failures[0])
        assert rig.sink.dones == []


def test_timings_say_where_a_query_waited(tmp_path: Path) -> None:
    with running(tmp_path, clock=HandClock(step_us=10)) as rig:
        query = Query(query_id="q-1", text="ada")
        start_us = rig.clock.time_us
        unit = rig.unit(query, published_us=start_us - 3_000)
        rig.stage.offer(unit, start_us)
        rig.stage.tick(start_us + 700, 0)
        rig.settled(1)
        (grouped,) = rig.sink.groups[0].queries
        assert grouped.timings_us["kafka_wait"] == start_us - unit.source.timestamp_ms * 1_000
        assert grouped.timings_us["window_wait"] == 700
        assert grouped.timings_us["encode"] == 20, "two looks at the clock: is anything late, and when is it encoded"
        assert grouped.timings_us["group"] == 40, (
            "between: may the next window close, the plan begins, is anything late, and grouped"
        )
        assert list(grouped.timings_us) == ["kafka_wait", "window_wait", "encode", "group"]


def test_a_record_without_a_timestamp_has_no_time_in_kafka(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        rig.stage.offer(rig.unit(Query(query_id="q-1", text="ada"), published_us=0), NOW_US)
        rig.tick()
        rig.settled(1)
        assert rig.sink.groups[0].queries[0].timings_us["kafka_wait"] == 0


def test_a_window_is_measured(tmp_path: Path) -> None:
    with running(tmp_path, settings=GrouperSettings(nprobe=2, jaccard_similarity_min=0)) as rig:
        rig.offer("ada", "ada ada", "ada ada ada")
        rig.tick()
        rig.settled(3)
        sample = rig.metrics.registry.get_sample_value
        assert sample("carpool_window_queries_sum") == 3
        assert sample("carpool_group_queries_sum") == 3
        assert sample("carpool_group_overlap_ratio_sum") == pytest.approx(1 - 2 / 6)
        assert sample("carpool_window_wait_seconds_count") == 3
        for stage in ("kafka_wait", "window_wait", "encode", "group"):
            assert sample("carpool_stage_seconds_count", {"stage": stage}) == 3


def test_a_large_group_is_cut_into_records_the_topic_takes(tmp_path: Path) -> None:
    settings = GrouperSettings(jaccard_similarity_min=0, group_bytes_max=64 * 1024)
    with running(tmp_path, settings=settings) as rig:
        rig.offer(*["ada " * 8_000] * 4)
        rig.tick()
        rig.settled(4)
        assert [len(done.parts) for done in rig.sink.dones] == [1, 1, 1, 1]
        assert all(len(done.outputs[0].value) <= 64 * 1024 for done in rig.sink.dones)
        assert [group.sequence for group in rig.sink.groups] == [0, 1, 2, 3]
        assert {group.groups_in_window_for_lane for group in rig.sink.groups} == {4}


def test_the_id_of_a_group_is_that_of_its_set_of_records() -> None:
    a, b, c = (Source(topic="t", partition=0, offset=offset, timestamp_ms=offset) for offset in (1, 2, 12))
    assert group_event_id([a, b]) == group_event_id([b, a])
    assert len({group_event_id(sources) for sources in ([a], [b], [c], [a, b], [a, c], [b, c], [a, b, c])}) == 7


def test_until_index_and_model_are_loaded_there_is_no_credit(tmp_path: Path) -> None:
    write_index(tmp_path)
    gate = threading.Event()
    clock, sink = HandClock(), ListSink()

    def load() -> WindowWork:
        assert gate.wait(20)
        return load_work(
            SETTINGS,
            IndexSettings(dir=str(tmp_path)),
            EmbeddingSettings(model=f"hashing:{DIMENSION}"),
            Metrics(),
            clock,
        )

    stage = GrouperStage(settings=SETTINGS, load=load, clock=clock)
    stage.start(sink)
    try:
        assert stage.credit() == Credit(records=0, size_bytes=0)
        assert stage.tick(NOW_US, 10) is None
        (reason,) = stage.not_ready()
        assert "being loaded" in reason
        gate.set()
        until(lambda: not stage.not_ready())
        assert stage.credit().records == 10
    finally:
        stage.close()
    assert sink.failures == []


def test_offering_before_all_is_loaded_is_a_defect_of_the_caller(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(RuntimeError, match="credit was zero"):
        rig.stage.offer(rig.unit(Query(query_id="q", text="ada")), NOW_US)


def build_fails(
    folder: Path, *, settings: GrouperSettings = SETTINGS, model: str = f"hashing:{DIMENSION}"
) -> CarpoolError:
    sink = ListSink()
    stage = build_stage(
        settings, IndexSettings(dir=str(folder)), EmbeddingSettings(model=model), Metrics(), HandClock()
    )
    stage.start(sink)
    until(lambda: bool(sink.failures))
    assert stage.credit() == Credit(records=0, size_bytes=0)
    assert stage.not_ready() == (str(sink.failures[0]),)
    stage.close()
    return sink.failures[0]


def test_a_missing_index_stops_the_service_with_how_to_build_one(tmp_path: Path) -> None:
    error = build_fails(tmp_path / "nothing")
    assert isinstance(error, ConfigError)
    assert "carpool index build" in str(error)


def test_another_embedding_model_than_the_indexs_stops_the_service(tmp_path: Path) -> None:
    write_index(tmp_path)
    error = build_fails(tmp_path, model="hashing:65")
    assert isinstance(error, ConfigError)
    assert "hashing:64" in str(error)
    assert "rebuild the index" in str(error)


def test_more_probes_than_the_index_has_clusters_stop_the_service(tmp_path: Path) -> None:
    write_index(tmp_path)
    error = build_fails(tmp_path, settings=GrouperSettings(nprobe=NLIST + 1))
    assert isinstance(error, ConfigError)
    assert "the index has 8 clusters" in str(error)


def test_damaged_centroids_stop_the_service(tmp_path: Path) -> None:
    write_index(tmp_path)
    path = tmp_path / CENTROIDS_NAME
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(bytes(content))
    assert str(path) in str(build_fails(tmp_path))


def test_centroids_of_another_build_stop_the_service(tmp_path: Path) -> None:
    manifest = write_index(tmp_path)
    content = (tmp_path / CENTROIDS_NAME).read_bytes()[::-1]
    (tmp_path / CENTROIDS_NAME).write_bytes(content)
    entry = FileEntry(size_bytes=len(content), crc32=zlib.crc32(content))
    write_manifest(tmp_path, msgspec.structs.replace(manifest, files={CENTROIDS_NAME: entry}))
    assert "another fingerprint" in str(build_fails(tmp_path))


def test_the_built_stage_plans_over_real_files(tmp_path: Path) -> None:
    write_index(tmp_path)
    sink = ListSink()
    stage = build_stage(
        GrouperSettings(),
        IndexSettings(dir=str(tmp_path)),
        EmbeddingSettings(model=f"hashing:{DIMENSION}"),
        Metrics(),
        HandClock(),
    )
    stage.start(sink)
    try:
        until(lambda: not stage.not_ready())
        rig = Rig(tmp_path)
        stage.offer(rig.unit(Query(query_id="q-1", text="euler")), NOW_US)
        stage.tick(NOW_US, 0)
        until(lambda: bool(sink.dones))
        assert sink.groups[0].queries[0].clusters[0] == WORDS.index("euler")
    finally:
        stage.close()


def test_closing_twice_or_before_the_start_does_no_harm(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.stage.close()
    with running(tmp_path) as other:
        other.stage.close()


# The horizon: full windows that are prepared while an earlier one is being planned.


class GatePolicy:
    """Everybody together, when the gate is open: a test holds a window while it leaves."""

    name: PolicyName = "whole"

    def __init__(self) -> None:
        self.windows = 0
        self.opened = threading.Semaphore(0)

    def group(self, similarity: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
        self.windows += 1
        assert self.opened.acquire(timeout=20)
        return (tuple(range(len(similarity))),)


AHEAD = GrouperSettings(
    window_queries_min=2, window_queries_max=4, intake_queries_max=40, window_ms_max=100, horizon_windows=2, nprobe=1
)


def prepared(rig: Rig) -> int:
    return sum(held.prepared is not None for held in list(rig.stage._held))


def horizon_numbers(group: Group) -> list[tuple[int, int, int]]:
    return [(entry.cluster, entry.windows, entry.queries) for entry in group.horizon]


def test_full_windows_are_read_ahead_while_one_leaves_and_its_record_says_what_they_want(tmp_path: Path) -> None:
    policy = GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy) as rig:
        rig.offer(*["ada"] * 4, *["bell", "curie"] * 2, *["curie", "darwin"] * 2, *["euler"] * 4, "faraday")
        rig.tick(waiting=50)
        until(lambda: policy.windows == 1 and prepared(rig) == 3)
        assert rig.stage.credit().records == 40 - 17, "what is read ahead is counted"
        policy.opened.release()
        until(lambda: policy.windows == 2 and prepared(rig) == 3)
        policy.opened.release(9)
        rig.settled(16)
        rig.tick()
        rig.settled(17)
        assert [horizon_numbers(group) for group in rig.sink.groups] == [
            [(1, 1, 2), (2, 1, 4), (3, 2, 2)],
            [(2, 1, 2), (3, 1, 2), (4, 2, 4)],
            [(4, 1, 4)],
            [],
            [],
        ]
        assert rig.metrics.registry.get_sample_value("carpool_horizon_windows_sum") == 2 + 2 + 1
        assert [len(group.queries) for group in rig.sink.groups] == [4, 4, 4, 4, 1]


def test_every_text_is_embedded_once_whether_or_not_it_was_read_ahead(tmp_path: Path) -> None:
    gate, policy = Gate(), GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy, embedder=gate) as rig:
        gate.opened.release(99)
        texts = [f"word{number}" for number in range(22)]
        rig.offer(*texts)
        rig.tick()
        until(lambda: prepared(rig) == 3)
        policy.opened.release(99)
        rig.settled(22)
        assert list(itertools.chain(*gate.batches)) == texts
        assert [len(batch) for batch in gate.batches] == [4, 4, 4, 4, 4, 2]


def test_a_window_leaves_although_the_next_one_is_still_being_embedded(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, settings=AHEAD, embedder=gate) as rig:
        rig.offer(*["ada"] * 8)
        gate.opened.release()
        rig.tick()
        until(lambda: len(gate.batches) == 2)
        until(lambda: len(rig.sink.acknowledged) == 4)
        assert [horizon_numbers(group) for group in rig.sink.groups] == [[]], "what is not known yet is not waited for"
        gate.opened.release()
        rig.settled(8)


def test_a_window_that_may_still_grow_is_not_closed_ahead(tmp_path: Path) -> None:
    policy = GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy) as rig:
        rig.offer(*["ada"] * 4)
        rig.tick()
        until(lambda: policy.windows == 1)
        rig.offer(*["bell"] * 3)
        assert rig.tick() is None
        assert len(rig.stage._held) == 1
        rig.offer("bell")
        rig.tick()
        until(lambda: prepared(rig) == 2)
        policy.opened.release(2)
        rig.settled(8)
        assert [len(group.queries) for group in rig.sink.groups] == [4, 4]


def test_with_the_horizon_off_one_window_is_in_hand_at_a_time(tmp_path: Path) -> None:
    gate, policy = Gate(), GatePolicy()
    settings = msgspec.structs.replace(AHEAD, horizon_windows=0)
    with running(tmp_path, settings=settings, policy=policy, embedder=gate) as rig:
        gate.opened.release(99)
        rig.offer(*["ada"] * 12)
        rig.tick()
        until(lambda: policy.windows == 1)
        rig.tick()
        assert (len(gate.batches), len(rig.stage._held)) == (1, 1)
        policy.opened.release(3)
        rig.settled(12)
        assert [group.horizon for group in rig.sink.groups] == [(), (), ()]


def test_revoked_queries_are_forgotten_where_they_were_read_ahead(tmp_path: Path) -> None:
    policy = GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy) as rig:
        units = rig.offer(*["ada"] * 4, *["bell", "curie"] * 2, *["darwin"] * 4)
        rig.tick()
        until(lambda: prepared(rig) == 3)
        gone = {unit.id for unit in [*units[4:8:2], *units[8:]]}
        rig.stage.revoke(frozenset(gone))
        rig.stage.check_integrity()
        assert rig.stage.credit().records == 40 - 6
        policy.opened.release(9)
        until(lambda: not rig.stage._held)
        assert sorted(rig.sink.acknowledged) == sorted(unit.id for unit in units if unit.id not in gone)
        assert [horizon_numbers(group) for group in rig.sink.groups] == [[(2, 1, 2)], []]
        assert rig.stage.credit() == Credit(records=40, size_bytes=32 * 1024 * 1024)


def test_what_is_revoked_while_it_is_embedded_ahead_is_in_no_horizon(tmp_path: Path) -> None:
    gate, policy = Gate(), GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy, embedder=gate) as rig:
        units = rig.offer(*["ada"] * 4, *["bell", "curie"] * 2)
        gate.opened.release()
        rig.tick()
        until(lambda: policy.windows == 1 and len(gate.batches) == 2)
        rig.stage.revoke(frozenset(unit.id for unit in units[4::2]))
        gate.opened.release()
        until(lambda: prepared(rig) == 2)
        policy.opened.release(9)
        until(lambda: not rig.stage._held)
        assert [horizon_numbers(group) for group in rig.sink.groups] == [[(2, 1, 2)], []]
        assert len(rig.sink.acknowledged) == 6


def test_what_expires_while_it_is_read_ahead_is_answered(tmp_path: Path) -> None:
    policy = GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy) as rig:
        rig.offer(*["ada"] * 4)
        rig.offer(*["bell"] * 4, deadline=NOW_US // 1_000 + 5)
        rig.tick()
        until(lambda: prepared(rig) == 2)
        rig.clock.time_us += 5_000
        policy.opened.release(9)
        rig.settled(8)
        assert [len(group.queries) for group in rig.sink.groups] == [4]
        answers = [output for done in rig.sink.dones for output in done.outputs if output.topic == ANSWERS.name]
        assert [decode(Answer, output.value, output.headers).status for output in answers] == ["expired"] * 4


def test_draining_lets_all_that_was_read_ahead_leave(tmp_path: Path) -> None:
    policy = GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy) as rig:
        units = rig.offer(*["ada"] * 15)
        rig.tick(waiting=7)
        until(lambda: prepared(rig) == 3)
        rig.stage.drain(NOW_US + 10_000_000)
        assert rig.tick(waiting=7) is None
        policy.opened.release(9)
        rig.settled(15)
        assert rig.sink.acknowledged == [unit.id for unit in units]


def test_the_most_that_is_held_is_what_the_intake_allows(tmp_path: Path) -> None:
    policy = GatePolicy()
    settings = msgspec.structs.replace(AHEAD, intake_queries_max=10, horizon_windows=100)
    with running(tmp_path, settings=settings, policy=policy) as rig:
        rig.offer(*["ada"] * 10)
        rig.tick(waiting=1_000)
        until(lambda: prepared(rig) == 2)
        assert rig.stage.credit().records == 0
        policy.opened.release(9)
        rig.settled(10)
        assert rig.stage.credit().records == 10


def test_no_query_with_a_deadline_is_overtaken_in_its_window(tmp_path: Path) -> None:
    settings = GrouperSettings(policy="greedy", nprobe=1)
    with running(tmp_path, settings=settings) as rig:
        rig.offer("ada", "bell")
        (urgent,) = rig.offer("curie", deadline=NOW_US // 1_000 + 60_000)
        rig.offer("ada", "bell")
        rig.tick()
        rig.settled(5)
        left = [query.source.offset for group in rig.sink.groups for query in group.queries]
        assert set(left[: left.index(urgent.source.offset)]) <= {1, 2}
        assert [len(group.queries) for group in rig.sink.groups] == [1, 1, 1, 1, 1]


def test_the_first_query_of_a_window_is_like_the_end_of_the_one_before(tmp_path: Path) -> None:
    with running(tmp_path, settings=GrouperSettings(nprobe=1)) as rig:
        rig.offer("ada", "bell")
        rig.tick()
        rig.settled(2)
        rig.offer("curie", "bell")
        rig.tick()
        rig.settled(4)
        assert [query.query.text for query in rig.sink.groups[1].queries] == ["bell", "curie"]
