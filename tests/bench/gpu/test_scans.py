"""The benchmark of shard devices, run small on the device that every machine has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.gpu import scans
from bench.gpu.scans import (
    CLUSTER_ROWS,
    FilledShard,
    ScanOptions,
    copy_bytes_per_s,
    gpu_promises,
    run,
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few scans of short vectors."""
    monkeypatch.setattr(scans, "DIMENSION", 16)
    monkeypatch.setattr(scans, "BATCHES", (1, 3))
    monkeypatch.setattr(scans, "SCANS_MIN", 3)
    monkeypatch.setattr(scans, "COPY_BYTES", 1 << 24)


def test_a_run_reports_scans_and_loads(tmp_path: Path) -> None:
    path, rows = tmp_path / "shard.json", [4 * CLUSTER_ROWS]
    assert run(ScanOptions(device="cpu", rows=rows, nprobe=8, seconds=0.0, json_file=path))
    found = msgspec.json.decode(path.read_bytes())["results"]["rows"]
    assert [row["numbers"] for row in found] == ["float16", "sq8"]
    whole = [row["all 3"]["scanned_bytes"] for row in found]
    assert whole[0] == 2 * whole[1] > 0
    assert all(row["hot 1"]["scan_ms"]["p50"] > 0 and row["slowdown_p99"] > 0 for row in found)


def test_questions_probe_clusters_of_the_shard_that_are_not_swapped() -> None:
    shard = FilledShard("cpu", "sq8", 40 * CLUSTER_ROWS, nprobe=8)
    probed = np.concatenate(shard.hot_probes(2000))
    assert probed.min() == 0 and probed.max() == shard.swapped.start - 1
    assert len(shard.swapped) == 2 and shard.nlist == 200
    counts = np.bincount(probed)
    assert counts[:5].mean() > 2 * counts[-5:].mean()
    everything = np.concatenate(shard.all_probes(4))
    assert sorted(everything.tolist()) == list(range(shard.swapped.start))


@pytest.mark.parametrize(
    ("share", "slowdown", "kept"), [(0.51, 1.1, 2), (0.49, 1.1, 1), (0.51, 1.2, 1), (0.4, 1.2, 0)]
)
def test_a_gpu_must_be_near_its_bandwidth_and_not_slowed_by_loads(
    share: float, slowdown: float, kept: int
) -> None:
    scans = {"all 3": {"bandwidth_share": share}, "slowdown_p99": slowdown}
    assert sum(gpu_promises([{"numbers": "float16", **scans}]).values()) == kept


def test_the_speed_of_a_copy_is_that_of_a_memory() -> None:
    assert 1e8 < copy_bytes_per_s("cpu") < 1e13
