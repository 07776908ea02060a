"""The cluster-major executor over real segments, threads and memory: exact, each cluster once, and
whole books.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from carpool.clock import SystemClock
from carpool.errors import CorruptionError, RetryableError
from tests.rig.faulty_disk import Fault
from tests.searcher.executor_rig import NLIST, TOP_K, exact, make_index, questions, running
from tests.searcher.faults import EVERY_FAULT, FAIL, SLOW
from tests.searcher.helpers import SmallIndex, exact_top_k, mask_of, some_visible
from tests.seed import SEED
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return make_index(tmp_path_factory.mktemp("index"))


@pytest.mark.parametrize(
    ("threads", "size", "prefetch", "slice_bytes_max"), [(1, 30, 0.0, 0), (3, 2, 0.2, 4096)]
)
def test_windows_of_queries_find_exactly_what_an_exact_search_of_their_clusters_finds(
    index: SmallIndex, threads: int, size: int, prefetch: float, slice_bytes_max: int
) -> None:
    queries, clusters = questions(index, 120, 5)
    with running(
        index, threads=threads, prefetch=prefetch, slice_bytes_max=slice_bytes_max
    ) as here:
        for start in range(0, 120, size):
            window = slice(start, start + size)
            following = {c for probes in clusters[start + size :][:size] for c in probes}
            keys = here.join(queries[window], clusters[window], horizon=dict.fromkeys(following, 1))
            for key, found in here.take(size).items():
                assert found is not None and key in keys
                assert found.best.rows.tolist() == exact(index, queries[key], clusters[key])
                assert [probe.cluster for probe in found.probes] == list(clusters[key])
                assert not found.skipped and not found.errors
                assert found.best.clusters.tolist() == index.clusters_of_rows(found.best.rows)
        assert (here.bytes_read("prefetch") > 0) == (prefetch > 0)


def test_rows_that_are_hidden_take_no_place_in_a_result(index: SmallIndex) -> None:
    queries, clusters = questions(index, 40, 4)
    are_visible = some_visible(index)
    with running(index) as here:
        here.hide_all_but(mask_of(index, are_visible))
        keys = here.join(queries, clusters)
        found = here.take(len(queries))
    for key, query, probes in zip(keys, queries, clusters, strict=True):
        result = found[key]
        assert result is not None
        wanted = exact_top_k(index, query, probes, TOP_K, are_visible)
        assert result.best.rows.tolist() == index.places(wanted)


def test_a_window_reads_each_cluster_once_and_what_queries_report_adds_up(
    index: SmallIndex,
) -> None:
    queries, clusters = questions(index, 50, 6)
    with running(index) as here:
        here.join(queries, clusters)
        found = here.take(50)
        distinct = {cluster for probes in clusters for cluster in probes}
        assert here.bytes_read() == sum(index.extents[cluster].size_bytes for cluster in distinct)
        assert sum(each.bytes_read for each in found.values() if each) == here.bytes_read()


def test_a_cluster_of_which_one_slice_is_damaged_is_skipped_and_what_is_left_of_it_is_searched(
    index: SmallIndex,
) -> None:
    queries, clusters = questions(index, 40, 6)
    bad = 3
    rows_per_page = index.manifest.layout().rows_per_page
    first = index.extents[bad].first_page * rows_per_page
    lost = range(first, first + rows_per_page)  # the rows of its first page
    with running(index, slice_bytes_max=index.manifest.layout().page_bytes) as here:
        here.trouble.faults = {(bad, 0): "flip"}
        here.join(queries, clusters)
        for key, found in here.take(40).items():
            assert found is not None
            assert found.skipped == ((bad,) if bad in clusters[key] else ())
            assert [f"cluster {bad} " in str(error) for error in found.errors] == [True] * len(
                found.skipped
            )
            rest = [row for row in exact(index, queries[key], clusters[key]) if row not in lost]
            assert found.best.rows.tolist()[: len(rest)] == rest


def test_windows_of_bad_reads_return_all_their_memory(index: SmallIndex) -> None:
    dice = random.Random(SEED)
    queries, clusters = questions(index, 8, 3)
    skips: Counter[Fault] = Counter()
    with running(index, timeout_us=1_000_000) as here:
        for number in range(20):
            bad = set(dice.sample(range(NLIST), 2))
            fault = EVERY_FAULT[number % 5]
            if fault != "hang" or number == 4:  # each of these takes until the timeout
                here.trouble.faults = dict.fromkeys(bad, fault)
            here.join(queries, clusters)
            for key, found in here.take(8).items():
                assert found is not None
                mine = clusters[key % 8]
                assert set(found.skipped) <= bad & set(mine)
                assert len(found.errors) == len(found.skipped)
                for error in found.errors:
                    assert isinstance(
                        error, CorruptionError if fault in ("flip", "short") else RetryableError
                    )
                    assert any(f"cluster {cluster} " in str(error) for cluster in found.skipped)
                good = [cluster for cluster in mine if cluster not in found.skipped]
                assert found.best.rows.tolist() == exact(index, queries[key % 8], good)
                skips[fault] += len(found.skipped)
            here.trouble.release()
        here.join(queries, clusters)
        here.take(8)
        wait_until(
            lambda: not here.memory.reader.stuck_bytes,
            "what hung came back, and its memory did not",
        )
        residents = here.memory.residents()
        assert here.memory.used_bytes == sum(
            here.memory.arena_bytes(cluster) for cluster in residents
        )
    assert skips[FAIL] and skips["flip"] and skips["short"] and not skips[SLOW], skips


def test_a_dropped_query_is_not_finished_and_an_expired_one_is_finished_with_none(
    index: SmallIndex,
) -> None:
    queries, clusters = questions(index, 3, 3)
    with running(index) as here:
        here.trouble.faults = dict.fromkeys(range(NLIST), "hang")
        (dropped,) = here.join(queries[:1], clusters[:1])
        (expired,) = here.join(
            queries[1:2], clusters[1:2], deadline_us=SystemClock().now_us() + 20_000
        )
        assert here.take(1) == {expired: None}
        here.executor.drop([dropped])
        here.trouble.release()
        (last,) = here.join(queries[2:], clusters[2:])
        assert list(here.take(1)) == [last]
