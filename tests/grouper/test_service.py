"""The grouper as a stage: what it groups, when windows close, what it counts and forgets."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from carpool.disk.centroids import probe
from carpool.loop.stage import Credit
from grouper.plan.scheduler import LEAD_US
from grouper.records import group_event_id
from grouper.settings import GrouperSettings
from schemas.query import Query
from schemas.topics import GROUPS
from tests.clocks import NOW_US, HandClock
from tests.grouper.stage import EMBEDDER, WORDS, Gate, running, write_index
from tests.records import a_source
from tests.waiting import wait_until


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
        assert group.index_version == "v-1"
        assert group.centroids_fingerprint == manifest.centroids_fingerprint
        assert group.embedding_model == EMBEDDER.fingerprint
        assert (group.lane, group.sequence) == (0, 0)
        assert (group.window_id, group.next) == (0, None)
        (query,) = group.queries
        vector = EMBEDDER.encode(["who was curie"])
        assert query.query == unit.record
        assert (query.source, query.headers) == (unit.source, unit.message.headers)
        assert (query.arrival_us, query.deadline_us) == (NOW_US, NOW_US + 60_000_000)
        assert query.vector == vector.astype("<f4").tobytes()
        assert query.clusters == tuple(probe(EMBEDDER.encode(WORDS), vector, 3)[0].tolist())
        assert group.clusters == tuple(sorted(query.clusters))


def test_a_vector_travels_normalised_and_probes_are_as_many_as_asked_for(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as rig:
        vector = EMBEDDER.encode(["gauss"])[0]
        content = (vector * 7).astype("<f4").tobytes()
        query = Query(
            query_id="q-1", vector=content, embedding_model=EMBEDDER.fingerprint, nprobe=1
        )
        rig.stage.offer(rig.unit(query), NOW_US)
        rig.tick()
        rig.settled(1)
        (grouped,) = rig.sink.groups[0].queries
        assert grouped.query.vector is None
        assert grouped.query.embedding_model == EMBEDDER.fingerprint
        assert np.frombuffer(grouped.vector, dtype="<f4") == pytest.approx(vector)
        assert grouped.clusters == (WORDS.index("gauss"),)
        rig.offer("ada")
        rig.offer("ada", nprobe=5)
        rig.tick()
        rig.settled(3)
        three, five = (query.clusters for query in rig.sink.groups[1].queries)
        assert (len(three), len(five), five[:3]) == (3, 5, three)


def test_queries_of_a_window_are_grouped_by_what_they_probe(tmp_path: Path) -> None:
    with running(tmp_path, settings=GrouperSettings(policy="greedy", nprobe=1)) as rig:
        units = rig.offer("ada", "bell", "ada ada", "curie", "bell bell")
        rig.tick()
        rig.settled(5)
        groups = rig.sink.groups
        sources = [unit.source for unit in units]
        expected = [[0, 2], [1, 4], [3]]
        assert [[sources.index(q.source) for q in group.queries] for group in groups] == expected
        assert [[unit_id - 1 for unit_id, _ in done.parts] for done in rig.sink.dones] == expected
        assert [group.sequence for group in groups] == [0, 1, 2]
        for group, following in itertools.pairwise(groups):
            assert group.next is not None
            assert group.next.query_id == following.queries[0].query.query_id
        assert groups[-1].next is None


def test_while_the_worker_is_busy_arrivals_gather_and_leave_together_when_it_is_free(
    tmp_path: Path,
) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        rig.offer("ada")
        rig.tick()
        wait_until(lambda: len(gate.batches) == 1)
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
        wait_until(lambda: len(gate.batches) == 1)
        rig.offer("bell")
        gate.opened.release(2)
        rig.settled(1)
        assert gate.batches == [["ada"]], (
            "more of this batch may be on its way: the tick after it says how many"
        )
        rig.offer("curie")
        rig.tick()
        rig.settled(3)
        assert gate.batches == [["ada"], ["bell", "curie"]]


def test_with_pending_records_the_tick_says_when_the_window_is_due_unless_the_stage_drains(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as rig:
        rig.offer("ada", "bell")
        assert rig.tick(waiting=5) == NOW_US + 100_000
        rig.clock.time_us += 100_000
        assert rig.tick(waiting=5) is None
        rig.settled(2)
        rig.offer("curie")
        assert rig.tick(waiting=5) == rig.clock.time_us + 400_000
        rig.stage.drain(NOW_US + 10_000_000)
        assert rig.tick(waiting=5) is None
        rig.settled(3)


def test_where_groups_leave_with_a_commit_a_window_closes_just_in_time_for_it(
    tmp_path: Path,
) -> None:
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


def test_a_window_closes_sooner_before_a_commit_the_longer_the_last_one_took(
    tmp_path: Path,
) -> None:
    with running(tmp_path, clock=HandClock(step_us=100)) as rig:
        rig.offer("ada")
        rig.tick()
        rig.settled(1)
        rig.offer("bell")
        next_commit_at_us = rig.clock.time_us + 40_000
        wake_us = rig.stage.tick(rig.clock.time_us, 0, next_commit_at_us)
        assert (
            wake_us is not None
            and next_commit_at_us - LEAD_US - 2_000 < wake_us < next_commit_at_us - LEAD_US
        )


def test_credit_counts_what_gathers_and_what_is_in_hand(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        total = rig.stage.credit()
        assert total == Credit(records=48, size_bytes=32 * 1024 * 1024)
        (unit,) = rig.offer("ada")
        size_bytes = unit.message.size_bytes
        assert size_bytes == 90 + len("traceparent") + 4
        assert rig.stage.credit() == Credit(records=47, size_bytes=total.size_bytes - size_bytes)
        rig.tick()
        wait_until(lambda: len(gate.batches) == 1)
        rig.offer("bell")
        assert rig.stage.credit() == Credit(
            records=46, size_bytes=total.size_bytes - 2 * size_bytes
        )
        rig.tick()
        gate.opened.release(2)
        rig.settled(2)
        assert rig.stage.credit() == total


def test_revoked_queries_are_forgotten_in_the_window_and_in_hand(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        first, second = rig.offer("ada", "bell")
        rig.tick()
        wait_until(lambda: len(gate.batches) == 1)
        third, fourth = rig.offer("curie", "darwin")
        rig.stage.revoke(frozenset({first.id, fourth.id, 999}), frozenset())
        rig.stage.check_integrity()
        assert rig.stage.credit().records == 46
        rig.tick()
        gate.opened.release(2)
        rig.settled(2)
        assert sorted(rig.sink.acknowledged) == [second.id, third.id]
        assert gate.batches == [["ada", "bell"], ["curie"]]


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
        assert rig.sink.dones[0].outputs[0].headers == rig.sink.dones[1].outputs[0].headers, (
            "under the same id"
        )
        assert [group.window_id for group in rig.sink.groups] == [0, 1]


def test_times_say_where_a_query_waited_and_its_window_is_measured(tmp_path: Path) -> None:
    settings = GrouperSettings(nprobe=2, window_queries_max=100)
    with running(tmp_path, settings=settings, clock=HandClock(step_us=10)) as rig:
        start_us = rig.clock.time_us
        sources = []
        for number, published_us in enumerate((start_us - 3_000, start_us, 0)):
            query = Query(query_id=f"q-{number}", text=" ".join(["ada"] * (number + 1)))
            unit = rig.unit(query, published_us=published_us)
            rig.stage.offer(unit, start_us)
            sources.append(unit.source)
        rig.stage.tick(start_us + 700, 0)
        rig.settled(3)
        first, _, last = rig.sink.groups[0].queries
        assert list(first.timings_us) == ["kafka_wait", "window_wait", "encode", "group"]
        assert first.timings_us["kafka_wait"] == start_us - sources[0].timestamp_ms * 1_000
        assert first.timings_us["window_wait"] == 700
        assert last.timings_us["kafka_wait"] == 0, "it has no timestamp"
        sample = rig.metrics.registry.get_sample_value
        assert sample("carpool_window_queries_sum") == 3
        assert sample("carpool_group_queries_sum") == 3
        for stage in first.timings_us:
            assert sample("carpool_stage_seconds_count", {"stage": stage}) == 3


def test_the_id_of_a_group_is_that_of_its_set_of_records() -> None:
    a, b, c = map(a_source, (1, 2, 12))
    assert group_event_id([a, b]) == group_event_id([b, a])
    sets = ([a], [b], [c], [a, b], [a, c], [b, c], [a, b, c])
    assert len(set(map(group_event_id, sets))) == len(sets)
