"""Memory is a byte budget: the process holds the budget and what it holds with next to no index,
nothing more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.searcher.helpers import normalised, write_index
from tests.waiting import WAIT_S

MIB = 1 << 20
CENTROIDS = normalised(np.random.default_rng(4).standard_normal((48, 384)))
ROOT = Path(__file__).resolve().parents[2]


def probe(index_dir: Path, budget_bytes: int) -> dict[str, Any]:
    """Runs a searcher in a process of its own and returns what it reports."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.searcher.memory_probe", str(index_dir), str(budget_bytes)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=WAIT_S,
    )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def footprint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same traffic over an index with as many clusters, of which each has one row."""
    folder = tmp_path_factory.mktemp("empty") / "index"
    write_index(folder, CENTROIDS, CENTROIDS)
    return probe(folder, 64 * MIB)


def test_with_a_tiny_index_the_searcher_needs_at_most_150_mb_and_loads_no_large_library(
    footprint: dict[str, Any],
) -> None:
    assert footprint["peak_bytes"] <= 150_000_000
    assert footprint["heavy"] == []


@pytest.mark.slow
def test_anonymous_memory_stays_within_the_budget_and_the_footprint(
    footprint: dict[str, Any], tmp_path: Path
) -> None:
    noise = 0.02 * np.random.default_rng(5).standard_normal((48 * 900, 384))
    index = write_index(
        tmp_path / "index", normalised(np.repeat(CENTROIDS, 900, axis=0) + noise), CENTROIDS
    )
    size_bytes = index.size_bytes
    budget_bytes = 18_000_000  # twelve of its clusters, and some kilobytes that none fits into
    assert size_bytes > 3 * budget_bytes
    report = probe(index.dir, budget_bytes)
    assert report["read_bytes"] > 5 * size_bytes  # the cache was turned over many times
    assert report["peak_bytes"] <= budget_bytes + footprint["peak_bytes"]
    assert report["peak_bytes"] >= footprint["peak_bytes"] + 0.8 * budget_bytes  # and it was used
