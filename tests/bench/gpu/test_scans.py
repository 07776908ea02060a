"""The benchmark of shard devices, run small on the device that every machine has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.core.spread import Spread
from bench.gpu.scans import (
    CLUSTER_ROWS,
    FilledShard,
    LoadRow,
    ScanOptions,
    ScanResults,
    ScanRow,
    copy_bytes_per_s,
    gpu_promises,
    run,
)

OPTIONS = ScanOptions(
    device="cpu",
    rows=(4 * CLUSTER_ROWS,),
    batches=(1, 3),
    dimension=16,
    nprobe=8,
    seconds=0.0,
    seed=3,
)
ONE = Spread(count=1, mean=1, p50=1, p99=1, max=1)


def test_a_run_reports_scans_and_loads(tmp_path: Path) -> None:
    assert run(msgspec.structs.replace(OPTIONS, json_file=tmp_path / "shard.json"))
    found = msgspec.json.decode((tmp_path / "shard.json").read_bytes())["results"]
    assert len(found["scans"]) == 2 * 2 * 2 and len(found["loads"]) == 2
    whole = {
        row["numbers"]: row["scanned_bytes"] for row in found["scans"] if row["probes"] == "all"
    }
    assert whole["float16"] == 2 * whole["sq8"] > 0
    assert all(row["scan_ms"]["p50"] > 0 for row in found["scans"])


def test_questions_probe_clusters_of_the_shard_that_are_not_swapped() -> None:
    shard = FilledShard(OPTIONS, "float16", 40 * CLUSTER_ROWS)
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
    scan = ScanRow(
        numbers="float16",
        rows=1,
        batch=64,
        probes="all",
        scan_ms=ONE,
        scanned_bytes=9,
        bandwidth_share=share,
    )
    load = LoadRow(
        numbers="float16",
        rows=1,
        load_ms=ONE,
        loaded_bytes_per_s=1,
        loaded_bytes_per_s_during_scans=1,
        slowdown_p50=1,
        slowdown_p99=slowdown,
    )
    results = ScanResults(device="", copied_bytes_per_s=1, scans=(scan,), loads=(load,))
    assert sum(gpu_promises(results).values()) == kept


def test_the_speed_of_a_copy_is_that_of_a_memory() -> None:
    assert 1e8 < copy_bytes_per_s("cpu", 1 << 24) < 1e13
