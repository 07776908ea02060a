"""Every device of the shard does what `ShardDevice` promises."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from threadpoolctl import threadpool_limits

from carpool.codes.margin import EXPECTED_RECALL, first_count
from carpool.disk.rotation import random_rotation
from carpool.errors import ConfigError
from schemas.record import ClusterId
from searcher.shard.device import ShardFullError, ShardNumbers
from searcher.shard.gpu import LIBRARY_BYTES, GpuShard
from tests.searcher.codes_rig import directions
from tests.searcher.shard_devices import (
    COUNTS,
    DIMENSION,
    EVERY_KIND,
    NLIST,
    Kind,
    Loaded,
    loaded,
    some_queries,
)

ALL = range(NLIST)


@pytest.fixture(autouse=True)
def one_thread_of_each_library() -> Iterator[None]:
    """Scans here are so short that more threads would only wait for each other."""
    with threadpool_limits(1):
        yield


@EVERY_KIND
def test_a_scan_finds_the_best_rows_of_the_clusters_of_each_query(kind: Kind) -> None:
    it = loaded(kind)
    probes = [[0, 3, 7], [2], [], [1], [8, 1], list(reversed(ALL)), [5, 4], [7, 6, 0], [3], [0]]
    queries = some_queries(len(probes))
    queries.flags.writeable = False
    for count in (1, 10, 2000):
        it.check_scan(queries, probes, count)
    it.check_scan(-some_queries(4), [[2], [3, 5], [0, 6], [0, 5, 6, 7]], 4)
    # More than are scanned at a time.
    it.check_scan(some_queries(150), [[at % 4, 8 - at % 5] for at in range(150)], 25)


@EVERY_KIND
@pytest.mark.parametrize("share", [0, 0.02, 0.5])
def test_a_masked_scan_finds_the_best_of_the_visible_rows(kind: Kind, share: float) -> None:
    it = loaded(kind)
    it.are_visible = np.random.default_rng(1).random(it.next_row) < share
    for count in (1, 10, 2000):
        it.check_scan(some_queries(4), [[0, 3, 7], [2], list(reversed(ALL)), [5, 4]], count)


@EVERY_KIND
def test_estimates_of_real_dimensions_are_within_the_margin_of_the_codec(kind: Kind) -> None:
    it = loaded(kind, (900, 40, 300), dimension=384)
    it.check_scan(some_queries(12, 384), [[0, 1, 2]] * 6 + [[2, 0]] * 6, 1240)


@pytest.mark.data
@EVERY_KIND
def test_real_questions_find_the_ids_of_an_exact_search(kind: Kind) -> None:
    """Of 100 questions, each over a tenth of the passages of Wikipedia."""
    folder = Path(os.environ["CARPOOL_DATA"]) / "embeddings"
    passages, questions = (
        np.load(folder / name).astype(np.float32)
        for name in ("wikipedia-16k.npy", "queries-hotpotqa.npy")
    )
    questions = np.ascontiguousarray(questions[:100])
    clusters, top_k = 100, 10
    centroids = passages[np.random.default_rng(0).permutation(len(passages))[:clusters]]
    owners = (passages @ centroids.T).argmax(1)
    order = np.argsort(owners, kind="stable")
    passages, owners = passages[order], owners[order]
    device = kind.open(clusters, random_rotation(384, 0), 64 << 20)
    for cluster in range(clusters):
        rows = np.flatnonzero(owners == cluster)
        device.load(ClusterId(cluster), int(rows[0]), passages[rows])
    probes = np.argsort(-(questions @ centroids.T), axis=1)[:, :10]
    count = first_count(device.codec, top_k)
    proposed, _ = device.scan(questions, list(probes), count)
    missed = 0
    for question, probed, found in zip(questions, probes, proposed, strict=True):
        scores = np.where(np.isin(owners, probed), passages @ question, -1)
        missed += len(set(np.argsort(-scores)[:top_k]) - set(found.tolist()))
    assert missed <= (1 - EXPECTED_RECALL["default"]) * top_k * len(questions)
    device.close()


@EVERY_KIND
def test_one_thread_loads_and_drops_while_another_scans(kind: Kind) -> None:
    it = loaded(kind, (400, 90, 3))
    failures: list[BaseException] = []
    has_ended = threading.Event()

    def load_and_drop() -> None:
        try:
            for number in range(40):
                cluster = ClusterId(3 + number % 5)
                vectors = directions(10 + 37 * number % 600, DIMENSION, seed=number)
                it.device.load(cluster, 100_000 * number, vectors)
                it.device.drop(cluster)
        except BaseException as error:
            failures.append(error)
        finally:
            has_ended.set()

    thread = threading.Thread(target=load_and_drop)
    thread.start()
    scans = 0
    while not has_ended.is_set() or scans < 20:
        it.check_scan(some_queries(4), [[0, 1, 2], [0], [2], [1, 0]], 50)
        scans += 1
    thread.join()
    assert not failures


def resident_set_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@EVERY_KIND
def test_clusters_that_come_and_go_leave_no_memory_behind(kind: Kind) -> None:
    it = Loaded(device=kind.make(dimension=16), kind=kind, dimension=16)
    vectors = directions(20_000, 16, seed=1)
    sizes = []
    for number in range(200):
        it.device.load(ClusterId(number % NLIST), 0, vectors)
        it.device.drop(ClusterId(number % NLIST))
        sizes.append(resident_set_bytes())
    assert sizes[-1] - sizes[50] < 16 << 20  # one cluster is 0.3 MB or more


class AnyOrder(RuleBasedStateMachine):
    """Clusters come and go in any order, under new row numbers each time."""

    kind: Kind

    def __init__(self) -> None:
        super().__init__()
        self.it = Loaded(device=self.kind.make(bytes_max=90_000), kind=self.kind)

    @rule(cluster=st.sampled_from(ALL), row_count=st.sampled_from([*COUNTS[:7], 128, 64]))
    def load(self, cluster: int, row_count: int) -> None:
        if cluster in self.it.clusters:
            return
        wanted = self.it.size_bytes + self.it.device.size_bytes(row_count)
        if wanted > self.it.device.capacity_bytes:
            with pytest.raises(ShardFullError, match="drop other clusters"):
                self.it.load(cluster, row_count)
        else:
            self.it.load(cluster, row_count)

    @precondition(lambda self: self.it.clusters)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.it.drop(data.draw(st.sampled_from(sorted(self.it.clusters))))

    @rule(data=st.data(), query_count=st.integers(0, 5), count=st.sampled_from([1, 7, 300]))
    def scan(self, data: st.DataObject, query_count: int, count: int) -> None:
        some = st.lists(st.sampled_from(sorted(self.it.clusters) or [0]), unique=True)
        probes = [data.draw(some) if self.it.clusters else [] for _ in range(query_count)]
        self.it.check_scan(directions(query_count, DIMENSION, count + 1), probes, count)

    @invariant()
    def all_that_is_loaded_is_found(self) -> None:
        self.it.check_scan(some_queries(1), [sorted(self.it.clusters)], 2000)


@EVERY_KIND
def test_clusters_may_come_and_go_in_any_order(kind: Kind) -> None:
    machine = type("Machine", (AnyOrder,), {"kind": kind})
    run = machine.TestCase(methodName="runTest")
    run.settings = settings(max_examples=6, stateful_step_count=25)
    run.runTest()


def test_a_machine_without_a_gpu_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"searcher\.shard_bytes to 0"):
        GpuShard("float16", nlist=NLIST, rotation=np.eye(8, dtype="f4"), bytes_max=1 << 30)


@pytest.mark.parametrize("numbers", ["float16", "sq8"])
def test_a_budget_that_holds_no_row_is_refused(numbers: ShardNumbers) -> None:
    with pytest.raises(ConfigError, match="shard_bytes"):
        GpuShard(
            numbers, nlist=NLIST, rotation=np.eye(48, dtype="f4"), bytes_max=9000, device="cpu"
        )


@pytest.mark.gpu
@pytest.mark.parametrize("numbers", ["float16", "sq8"])
def test_a_gpu_allocates_no_more_than_the_budget(numbers: ShardNumbers) -> None:
    import torch

    budget, clusters, rows = 400 << 20, 64, 4000
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    rotation = random_rotation(384, 0)
    device = GpuShard(numbers, nlist=clusters, rotation=rotation, bytes_max=budget)
    for cluster in range(clusters):
        device.load(ClusterId(cluster), cluster * rows, directions(rows, 384, cluster))
    for query_count, probed, count in ((64, clusters, 2048), (1, 3, 20), (64, 2, 500)):
        probes = [(at + np.arange(probed)) % clusters for at in range(query_count)]
        device.scan(directions(query_count, 384, 9), probes, count)
    assert torch.cuda.max_memory_reserved() - before <= budget
    device.close()
    assert torch.cuda.memory_reserved() - before <= LIBRARY_BYTES
