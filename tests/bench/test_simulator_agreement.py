"""The simulator beside the searcher's own executors over real segments: the same windows, the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from bench.simulator.agreement import Agreement, Question, compare
from bench.simulator.shelf import write_shelf
from bench.simulator.trace import Clustered
from bench.simulator.ways import WAYS, Way
from carpool.disk.centroids import probe
from searcher.cache.policies import POLICY_NAMES, PolicyName
from tests.searcher.helpers import Float32, normalised

NLIST, DIMENSION = 24, 32


def compared(
    work: Path, way: Way, *, prefetch_share: float = 0, read_ahead_share: float = 0, repeats: int = 1
) -> Agreement:
    rng = np.random.default_rng(3)
    vectors: Float32 = normalised(rng.standard_normal((4_000, DIMENSION)))
    centroids: Float32 = normalised(rng.standard_normal((NLIST, DIMENSION)))
    questions: Float32 = normalised(rng.standard_normal((160, DIMENSION)))
    clustered = Clustered(centroids, probe(centroids, vectors, 1)[:, 0].astype(np.int64))
    shelf = write_shelf(work, vectors, clustered)._replace(direct_io="auto")
    asked = Question(
        way=way,
        nprobe=4,
        window=8,
        budget_share=0.4,
        read_ahead_share=read_ahead_share,
        prefetch_share=prefetch_share,
        threads=1,
        repeats=repeats,
        burst_repeats=1,
    )
    return compare(shelf, questions, asked)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_real_run_reads_the_bytes_that_the_simulator_says(tmp_path: Path, policy: PolicyName) -> None:
    found = compared(tmp_path, structs.replace(WAYS["carpool"], policy=policy))
    assert found.bytes_are_equal and found.simulated_bytes > 0
    assert found.real_ms.count == found.simulated_ms.count == 96
    assert found.disk.bytes_per_us > 0 and found.costs.turn_us > 0 and len(found.disks) == 3
    assert all(ratio > 0 for ratio in found.latency_ratios.values())


def test_a_real_run_that_reads_ahead_reads_the_bytes_that_the_simulator_says(tmp_path: Path) -> None:
    found = compared(tmp_path, WAYS["carpool"], prefetch_share=0.2, read_ahead_share=0.3, repeats=2)
    assert len(found.real_bytes) == len(found.runs_ms) == 2 and len(found.disks) == 4 and len(found.others) == 3
    assert found.bytes_are_equal and found.simulated_bytes > 0


@pytest.mark.parametrize("way", ["edgerag", "cagr-greedy", "cagr-agglomerative"])
def test_query_by_query_without_prefetching_reads_the_bytes_that_the_simulator_says(tmp_path: Path, way: str) -> None:
    found = compared(tmp_path, WAYS[way])
    assert found.bytes_are_equal and found.simulated_bytes > 0
