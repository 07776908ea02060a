"""The benchmark of shard devices, run small on the device that every machine has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.core.spread import Spread
from bench.micro.shard import (
    CLUSTER_ROWS,
    FilledShard,
    LoadRow,
    ScanRow,
    ShardOptions,
    ShardResult,
    copy_bytes_per_s,
    gpu_promises,
    run,
    scan_lines,
)

OPTIONS = ShardOptions(
    device="ram",
    numbers=("float16", "sq8"),
    rows=(2 * CLUSTER_ROWS, 4 * CLUSTER_ROWS),
    batches=(1, 3),
    dimension=16,
    nprobe=8,
    seconds=0.0,
    seed=3,
)


def scan_row(batch: int, scanned_bytes: float, p50_ms: float, share: float) -> ScanRow:
    return ScanRow(
        numbers="float16",
        rows=1,
        batch=batch,
        probes="all",
        scan_ms=Spread(count=1, mean=p50_ms, p50=p50_ms, p99=p50_ms, max=p50_ms),
        scanned_bytes=scanned_bytes,
        bandwidth_share=share,
    )


def result(share: float, slowdown: float) -> ShardResult:
    load = LoadRow(
        numbers="float16",
        rows=1,
        load_ms=Spread(count=1, mean=1, p50=1, p99=1, max=1),
        fixed_us=1,
        bytes_per_s=1,
        loaded_bytes_per_s=1,
        loaded_bytes_per_s_during_scans=1,
        slowdown_p50=1,
        slowdown_p99=slowdown,
    )
    return ShardResult(
        device="", copied_bytes_per_s=1, scans=(scan_row(64, 9, 1, share),), lines=(), loads=(load,)
    )


def test_a_run_reports_scans_loads_and_lines(tmp_path: Path) -> None:
    assert run(OPTIONS, tmp_path / "shard.json")
    found = msgspec.json.decode((tmp_path / "shard.json").read_bytes())["results"]
    assert len(found["scans"]) == 2 * 2 * 2 * 2 and len(found["loads"]) == 4
    whole = {
        (row["numbers"], row["rows"]): row["scanned_bytes"]
        for row in found["scans"]
        if row["probes"] == "all"
    }
    assert whole["float16", 4000] == 2 * whole["sq8", 4000] > whole["float16", 2000]
    assert all(row["scan_ms"]["p50"] > 0 for row in found["scans"])
    assert {(line["numbers"], line["batch"]) for line in found["lines"]} == {
        (numbers, batch) for numbers in ("float16", "sq8") for batch in (1, 3)
    }


def test_questions_probe_clusters_of_the_shard_that_are_not_swapped() -> None:
    shard = FilledShard(OPTIONS, "float16", 40 * CLUSTER_ROWS)
    probed = np.concatenate(shard.hot_probes(2000))
    assert probed.min() == 0 and probed.max() == shard.swapped.start - 1
    assert len(shard.swapped) == 2 and shard.nlist == 200
    counts = np.bincount(probed)
    assert counts[:5].mean() > 2 * counts[-5:].mean()
    assert abs(int(shard.row_counts.sum()) - 40 * CLUSTER_ROWS) < 40


def test_a_line_gives_back_the_times_that_it_was_fitted_to() -> None:
    rows = [scan_row(8, size, 0.25 + size / 2e9 * 1e3, 0) for size in (1e6, 5e6, 9e6)]
    (line,) = scan_lines([*rows, scan_row(1, 1e6, 1, 0)])
    assert line.batch == 8
    assert (line.fixed_us, line.bytes_per_s) == (250.0, pytest.approx(2e9))


@pytest.mark.parametrize(
    ("share", "slowdown", "kept"), [(0.51, 1.1, 2), (0.49, 1.1, 1), (0.51, 1.2, 1), (0.4, 1.2, 0)]
)
def test_a_gpu_must_be_near_its_bandwidth_and_not_slowed_by_loads(
    share: float, slowdown: float, kept: int
) -> None:
    assert sum(gpu_promises(result(share, slowdown)).values()) == kept


def test_the_speed_of_a_copy_is_that_of_a_memory() -> None:
    assert 1e8 < copy_bytes_per_s("cpu", 1 << 24) < 1e13


def test_all_clusters_that_are_not_swapped_are_scanned_once() -> None:
    shard = FilledShard(OPTIONS, "sq8", 10 * CLUSTER_ROWS)
    probes = shard.all_probes(4)
    assert len(probes) == 4 and min(map(len, probes)) >= 2
    assert sorted(np.concatenate(probes).tolist()) == list(range(9))
