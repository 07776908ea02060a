"""The simulator beside the searcher's own executor over real segments: the same windows, the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.simulator.agreement import Agreement, Question, compare
from bench.simulator.trace import Clustered
from carpool.disk.centroids import probe
from searcher.cache.policies import POLICY_NAMES, PolicyName
from tests.searcher.helpers import Float32, normalised

NLIST, DIMENSION = 24, 32


def compared(work: Path, *, policy: PolicyName, prefetch_share: float, read_ahead_share: float) -> Agreement:
    rng = np.random.default_rng(3)
    vectors: Float32 = normalised(rng.standard_normal((4_000, DIMENSION)))
    centroids: Float32 = normalised(rng.standard_normal((NLIST, DIMENSION)))
    questions: Float32 = normalised(rng.standard_normal((240, DIMENSION)))
    clustered = Clustered(centroids, probe(centroids, vectors, 1)[:, 0].astype(np.int64))
    asked = Question(
        nprobe=4,
        window=8,
        budget_share=0.4,
        read_ahead_share=read_ahead_share,
        prefetch_share=prefetch_share,
        policy=policy,
        direct_io="auto",
    )
    return compare(vectors, clustered, questions, asked, work)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_real_run_reads_the_bytes_that_the_simulator_says(tmp_path: Path, policy: PolicyName) -> None:
    found = compared(tmp_path, policy=policy, prefetch_share=0, read_ahead_share=0)
    assert found.real_bytes == found.simulated_bytes > 0
    assert found.real_ms.count == found.simulated_ms.count == 144
    assert found.disk.bytes_per_us > 0 and found.costs.work_ns > 0
    assert all(ratio > 0 for ratio in found.latency_ratios.values())
    assert not list(tmp_path.iterdir()), "segments are left behind"


def test_a_real_run_that_reads_ahead_reads_the_bytes_that_the_simulator_says(tmp_path: Path) -> None:
    found = compared(tmp_path, policy="farthest_next_use", prefetch_share=0.2, read_ahead_share=0.3)
    assert found.real_bytes == found.simulated_bytes > 0
