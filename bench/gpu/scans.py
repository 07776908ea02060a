"""How fast a device of the hot shard scans, also while it loads, against a copy of its memory.

Clusters and questions are made up: their sizes vary, and some are probed much more often. The
figures depend on nothing else, so no data are needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
import torch
import typer
from typer import Option

from bench.core.options import JsonOption, NprobeOption, command_of
from bench.core.run import BenchRun
from bench.core.spread import Spread, spread
from carpool.arrays import Float32, Int64
from carpool.disk.rotation import random_rotation
from carpool.errors import ConfigError
from schemas.record import ClusterId
from searcher.shard.device import ShardDevice, ShardNumbers
from searcher.shard.gpu import GpuShard

DIMENSION = 384
CLUSTER_ROWS = 1000
HOT_SHARE = 0.2
"""The shard has this part of the clusters of an index."""
POPULARITY_POWER = 0.55
"""The n-th cluster is probed n^-0.55 times as often: the first fifth takes 48 % of the probes, as
of real questions.
"""
SWAPPED_SHARE = 0.05
"""Clusters that no question probes: they are dropped and loaded while others are scanned."""
COUNT = 15
"""Rows that are proposed for a question with top_k 10."""
POOL_ROWS = 1 << 16
SCANS_MIN = 20
COPY_BYTES = 1 << 28
COPIES = 10
BATCHES = (1, 8, 64)
BANDWIDTH_SHARE_MIN = 0.5
SWAP_SLOWDOWN_MAX = 1.1


class ScanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How fast does a device of the hot shard scan and load?"""

    device: Annotated[str, Option(help="cuda or cpu.")] = "cuda"
    rows: Annotated[list[int], Option(min=1, help="Rows of the shard; may be repeated.")]
    nprobe: NprobeOption = 32
    seconds: Annotated[float, Option(min=0, help="Of each measurement, at least.")] = 2.0
    json_file: JsonOption = None


class FilledShard:
    """A device with clusters. The first are the hottest; the last are probed by no question."""

    def __init__(self, device: str, numbers: ShardNumbers, rows: int, nprobe: int) -> None:
        """Loads all clusters. Blocks."""
        self._random = np.random.default_rng(0)
        self._nprobe = nprobe
        self.row_counts = _row_counts(rows, self._random)
        self.row_bytes = DIMENSION * (2 if numbers == "float16" else 1)
        self.nlist = round(len(self.row_counts) / HOT_SHARE)
        pool = self._random.standard_normal((POOL_ROWS, DIMENSION), np.float32)
        self._pool = pool / np.linalg.norm(pool, axis=1, keepdims=True)
        self.device: ShardDevice = GpuShard(
            numbers,
            nlist=self.nlist,
            rotation=random_rotation(DIMENSION, 0),
            # Room for what a device needs in addition to vectors.
            bytes_max=int(rows * self.row_bytes * 1.25) + (256 << 20),
            device=device,
        )
        count = len(self.row_counts)
        self.swapped = range(count - max(1, int(count * SWAPPED_SHARE)), count)
        for cluster in range(count):
            self.load(cluster)

    def load(self, cluster: int) -> None:
        count = int(self.row_counts[cluster])
        start = cluster * 7919 % (POOL_ROWS - count)
        self.device.load(ClusterId(cluster), cluster << 20, self._pool[start : start + count])

    def size_bytes(self, clusters: Int64) -> int:
        """Returns the bytes of the vectors of clusters."""
        return int(self.row_counts[clusters].sum()) * self.row_bytes

    def queries(self, batch: int) -> Float32:
        """Returns questions: (batch, dim) float32."""
        chosen: Float32 = self._pool[self._random.integers(0, POOL_ROWS, batch)]
        return chosen

    def hot_probes(self, batch: int) -> list[Int64]:
        """Returns the clusters in the shard among those that each question probes."""
        popular = np.arange(1, self.nlist + 1) ** -POPULARITY_POWER
        popular /= popular.sum()
        return [
            found[found < self.swapped.start]
            for found in (
                self._random.choice(self.nlist, self._nprobe, replace=False, p=popular)
                for _ in range(batch)
            )
        ]

    def all_probes(self, batch: int) -> list[Int64]:
        """Returns all clusters that questions may probe, each for one of the questions."""
        return np.array_split(self._random.permutation(self.swapped.start), batch)

    def time_scans(
        self, make: Callable[[int], list[Int64]], batch: int, seconds: float
    ) -> tuple[Spread, float]:
        """Returns the milliseconds of scans, and the mean bytes that they were asked for."""
        work = [(self.queries(batch), make(batch)) for _ in range(SCANS_MIN)]
        sizes = [self.size_bytes(np.unique(np.concatenate(probes))) for _, probes in work]
        for queries, probes in work[:3]:  # the first are slow: libraries start, memory is allocated
            self.device.scan(queries, probes, COUNT)
        scan_ms: list[float] = []
        until_s = time.perf_counter() + seconds
        while len(scan_ms) < SCANS_MIN or time.perf_counter() < until_s:
            queries, probes = work[len(scan_ms) % SCANS_MIN]
            began_s = time.perf_counter()
            self.device.scan(queries, probes, COUNT)
            scan_ms.append(1e3 * (time.perf_counter() - began_s))
        times = spread(scan_ms)
        assert times is not None
        return times, float(np.mean(sizes))


def run(options: ScanOptions) -> bool:
    """Measures, prints and reports. Only a GPU has promises."""
    run = BenchRun("gpu-scans", options)
    copied_bytes_per_s = copy_bytes_per_s(options.device)
    rows = []
    for numbers in get_args(ShardNumbers):
        for count in options.rows:
            shard = FilledShard(options.device, numbers, count, options.nprobe)
            found = measure(shard, options.seconds, copied_bytes_per_s)
            rows.append({"numbers": numbers, "rows": count, **found})
            shard.device.close()
    is_gpu = options.device == "cuda"
    return run.finish(
        {"scans": {f"{each['numbers']}, {each['rows']:,} rows": each for each in rows}},
        promises=gpu_promises(rows) if is_gpu else {},
        results={
            "device": str(torch.cuda.get_device_name()) if is_gpu else "memory",
            "copied_bytes_per_s": copied_bytes_per_s,
            "rows": rows,
        },
    )


def measure(shard: FilledShard, seconds: float, copied_bytes_per_s: float) -> dict[str, Any]:
    """Returns the figures of one shard.

    For each batch of questions, of the clusters of the shard among the probed ones (`hot`) and of
    every cluster for one of the questions (`all`): ms of a scan, bytes of the vectors that were
    asked for, and these bytes over the median time, to what a copy moves in that time. Then the
    time of a scan of the largest batch to that alone, while clusters are loaded one by one, with
    the encoding of their vectors.
    """
    found: dict[str, Any] = {}
    for probes, make in (("hot", shard.hot_probes), ("all", shard.all_probes)):
        for batch in BATCHES:
            times, scanned_bytes = shard.time_scans(make, batch, seconds)
            found[f"{probes} {batch}"] = {
                "scan_ms": times,
                "scanned_bytes": scanned_bytes,
                "bandwidth_share": scanned_bytes / (times.p50 / 1e3) / copied_bytes_per_s,
            }
    alone, _ = shard.time_scans(shard.hot_probes, BATCHES[-1], seconds)
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            for cluster in shard.swapped:
                shard.device.drop(ClusterId(cluster))
                shard.load(cluster)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        during, _ = shard.time_scans(shard.hot_probes, BATCHES[-1], seconds)
    finally:
        is_over.set()
        thread.join()
    return found | {"slowdown_p99": during.p99 / alone.p99}


def copy_bytes_per_s(device: str) -> float:
    """Returns the bytes that a copy in its memory reads and writes a second."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "this machine has no CUDA device that PyTorch can use; measure --device cpu, or run "
            "this on a machine with a GPU"
        )
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best_s = float("inf")
    for _ in range(6):
        began_s = time.perf_counter()
        for _ in range(COPIES):
            target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - began_s)
    return 2 * COPIES * COPY_BYTES / best_s


def _row_counts(rows: int, random: np.random.Generator) -> Int64:
    """Returns the rows of 8 clusters or more, `rows` together: about `CLUSTER_ROWS` each."""
    shares = random.lognormal(0, 0.5, max(8, round(rows / CLUSTER_ROWS)))
    counts = np.rint(shares / shares.sum() * rows).astype(np.int64)
    limited: Int64 = np.clip(counts, 1, POOL_ROWS // 2)
    return limited


def gpu_promises(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Returns what a GPU must keep."""
    largest = [each for each in rows if each["numbers"] == "float16"][-1]
    return {
        f"scans during loads take at most {SWAP_SLOWDOWN_MAX} times as long (p99)": all(
            each["slowdown_p99"] <= SWAP_SLOWDOWN_MAX for each in rows
        ),
        f"{BATCHES[-1]} questions scan float16 at {BANDWIDTH_SHARE_MIN:.0%} of the memory's "
        "bandwidth or more (largest shard)": (
            largest[f"all {BATCHES[-1]}"]["bandwidth_share"] >= BANDWIDTH_SHARE_MIN
        ),
    }


if __name__ == "__main__":
    typer.run(command_of(ScanOptions, "bench.gpu.scans"))
