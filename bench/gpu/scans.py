"""How fast a device of the hot shard scans and loads, beside how fast its memory is copied.

Clusters and questions are made up: their sizes vary, and some are probed much more often. The
figures depend on nothing else, so no data are needed.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from bench.core.run import begin
from bench.core.spread import Spread, spread
from carpool.disk.rotation import random_rotation
from carpool.errors import ConfigError
from schemas.record import ClusterId
from searcher.shard.device import Float32, Int64, ShardDevice, ShardNumbers
from searcher.shard.gpu import GpuShard

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
BANDWIDTH_SHARE_MIN = 0.5
SWAP_SLOWDOWN_MAX = 1.1
PROMISED_BATCH = 64


class ScanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. `rows`: of the shard; `batches`: questions of a scan.

    `seconds`: of each measurement, at least.
    """

    device: str
    rows: tuple[int, ...]
    nprobe: int
    seconds: float
    numbers: tuple[ShardNumbers, ...] = ("float16", "sq8")
    batches: tuple[int, ...] = (1, 8, 64)
    dimension: int = 384
    seed: int = 0
    json_file: Path | None = None


class ScanRow(msgspec.Struct, frozen=True, kw_only=True):
    """Scans of one batch size. `probes`: `hot`, the clusters of the shard among `nprobe` probed
    ones; or `all`, every cluster for one of the questions.

    `scanned_bytes`: mean bytes of the vectors that were asked for, each counted once a scan;
    `bandwidth_share`: these bytes over the median time, to what a copy moves in that time.
    """

    numbers: ShardNumbers
    rows: int
    batch: int
    probes: str
    scan_ms: Spread
    scanned_bytes: float
    bandwidth_share: float


class LoadRow(msgspec.Struct, frozen=True, kw_only=True):
    """Loads of clusters one by one, alone and during scans, and scans during loads.

    The time of a load has the encoding of the vectors in it. `slowdown_p50`, `slowdown_p99`: scan
    time during loads to scan time alone.
    """

    numbers: ShardNumbers
    rows: int
    load_ms: Spread
    loaded_bytes_per_s: float
    loaded_bytes_per_s_during_scans: float
    slowdown_p50: float
    slowdown_p99: float


class ScanResults(msgspec.Struct, frozen=True, kw_only=True):
    """`copied_bytes_per_s`: read and written by a copy within the memory of the device."""

    device: str
    copied_bytes_per_s: float
    scans: tuple[ScanRow, ...]
    loads: tuple[LoadRow, ...]


class FilledShard:
    """A device with clusters. The first are the hottest; the last are probed by no question."""

    def __init__(self, options: ScanOptions, numbers: ShardNumbers, rows: int) -> None:
        self._random = np.random.default_rng(options.seed)
        self._options = options
        self.numbers = numbers
        self.row_counts = _row_counts(rows, self._random)
        self.row_bytes = options.dimension * (2 if numbers == "float16" else 1)
        self.nlist = round(len(self.row_counts) / HOT_SHARE)
        pool = self._random.standard_normal((POOL_ROWS, options.dimension), np.float32)
        self._pool = pool / np.linalg.norm(pool, axis=1, keepdims=True)
        self.device: ShardDevice = GpuShard(
            numbers,
            nlist=self.nlist,
            rotation=random_rotation(options.dimension, options.seed),
            # Room for what a device needs beside vectors.
            bytes_max=int(rows * self.row_bytes * 1.25) + (256 << 20),
            device=options.device,
        )

    @property
    def swapped(self) -> range:
        """The clusters that no question probes."""
        count = len(self.row_counts)
        return range(count - max(1, int(count * SWAPPED_SHARE)), count)

    def load(self, cluster: int) -> float:
        """Loads a cluster, and returns the seconds that it took."""
        count = int(self.row_counts[cluster])
        start = cluster * 7919 % (POOL_ROWS - count)
        began_s = time.perf_counter()
        self.device.load(ClusterId(cluster), cluster << 20, self._pool[start : start + count])
        return time.perf_counter() - began_s

    def size_bytes(self, clusters: npt.NDArray[np.int64] | Sequence[int]) -> int:
        """Returns the bytes of the vectors of clusters."""
        return int(self.row_counts[np.asarray(clusters, np.int64)].sum()) * self.row_bytes

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
                self._random.choice(self.nlist, self._options.nprobe, replace=False, p=popular)
                for _ in range(batch)
            )
        ]

    def all_probes(self, batch: int) -> list[Int64]:
        """Returns all clusters that questions may probe, each for one of the questions."""
        return np.array_split(self._random.permutation(self.swapped.start), batch)


def run(options: ScanOptions) -> bool:
    """Measures, prints and reports. Returns whether every promise was kept; only a GPU has some.

    Raises `ConfigError` where there is no such device.
    """
    run = begin("gpu-scans", options)
    copied_bytes_per_s = copy_bytes_per_s(options.device)
    scans: list[ScanRow] = []
    loads: list[LoadRow] = []
    for numbers in options.numbers:
        for rows in options.rows:
            shard = FilledShard(options, numbers, rows)
            load_s = [shard.load(cluster) for cluster in range(len(shard.row_counts))]
            scans += scan_rows(shard, options, rows, copied_bytes_per_s)
            loads.append(load_row(shard, options, rows, load_s))
            shard.device.close()
    is_gpu = options.device == "cuda"
    result = ScanResults(
        device=str(torch.cuda.get_device_name()) if is_gpu else "memory",
        copied_bytes_per_s=copied_bytes_per_s,
        scans=tuple(scans),
        loads=tuple(loads),
    )
    promises = gpu_promises(result) if is_gpu else {}
    return run.finish(lambda console: _print(console, result), promises=promises, results=result)


def copy_bytes_per_s(device: str, size_bytes: int = COPY_BYTES) -> float:
    """Returns the bytes that a copy within the memory of `device` reads and writes a second.

    Raises `ConfigError` where there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "this machine has no CUDA device that PyTorch can use; measure --device cpu, or run "
            "this on a machine with a GPU"
        )
    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best_s = float("inf")
    for _ in range(6):
        began_s = time.perf_counter()
        for _ in range(COPIES):
            target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - began_s)
    return 2 * COPIES * size_bytes / best_s


def _row_counts(rows: int, random: np.random.Generator) -> Int64:
    """Returns the rows of 8 clusters or more, `rows` together: about `CLUSTER_ROWS` each."""
    shares = random.lognormal(0, 0.5, max(8, round(rows / CLUSTER_ROWS)))
    counts = np.rint(shares / shares.sum() * rows).astype(np.int64)
    limited: Int64 = np.clip(counts, 1, POOL_ROWS // 2)
    return limited


def scan_rows(
    shard: FilledShard, options: ScanOptions, rows: int, copied_bytes_per_s: float
) -> list[ScanRow]:
    """Times scans of every batch size, of the hot clusters of each question and of all clusters."""
    found = []
    for probes, make in (("hot", shard.hot_probes), ("all", shard.all_probes)):
        for batch in options.batches:
            scan_s, scanned_bytes = time_scans(shard, make, batch, options.seconds)
            times = spread(one * 1e3 for one in scan_s)
            assert times is not None
            found.append(
                ScanRow(
                    numbers=shard.numbers,
                    rows=rows,
                    batch=batch,
                    probes=probes,
                    scan_ms=times,
                    scanned_bytes=scanned_bytes,
                    bandwidth_share=scanned_bytes / (times.p50 / 1e3) / copied_bytes_per_s,
                )
            )
    return found


def time_scans(
    shard: FilledShard, make: Callable[[int], list[Int64]], batch: int, seconds: float
) -> tuple[list[float], float]:
    """Returns the seconds of scans, and the mean bytes that they were asked for."""
    work = [(shard.queries(batch), make(batch)) for _ in range(SCANS_MIN)]
    sizes = [shard.size_bytes(np.unique(np.concatenate(probes))) for _, probes in work]
    for queries, probes in work[:3]:  # the first are slow: libraries start, memory is allocated
        shard.device.scan(queries, probes, COUNT)
    scan_s: list[float] = []
    until_s = time.perf_counter() + seconds
    while len(scan_s) < SCANS_MIN or time.perf_counter() < until_s:
        queries, probes = work[len(scan_s) % SCANS_MIN]
        began_s = time.perf_counter()
        shard.device.scan(queries, probes, COUNT)
        scan_s.append(time.perf_counter() - began_s)
    return scan_s, float(np.mean(sizes))


def load_row(
    shard: FilledShard, options: ScanOptions, rows: int, load_s: Sequence[float]
) -> LoadRow:
    """Times scans while a thread drops and loads clusters. `load_s`: of all clusters, alone."""
    alone_s, _ = time_scans(shard, shard.hot_probes, PROMISED_BATCH, options.seconds)
    loaded: list[tuple[int, float]] = []
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            for cluster in shard.swapped:
                shard.device.drop(ClusterId(cluster))
                loaded.append((cluster, shard.load(cluster)))

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        during_s, _ = time_scans(shard, shard.hot_probes, PROMISED_BATCH, options.seconds)
    finally:
        is_over.set()
        thread.join()
    load_ms = spread(one * 1e3 for one in load_s)
    alone, during = spread(alone_s), spread(during_s)
    assert load_ms is not None and alone is not None and during is not None
    return LoadRow(
        numbers=shard.numbers,
        rows=rows,
        load_ms=load_ms,
        loaded_bytes_per_s=shard.size_bytes(range(len(load_s))) / sum(load_s),
        loaded_bytes_per_s_during_scans=shard.size_bytes([one for one, _ in loaded])
        / sum(seconds for _, seconds in loaded),
        slowdown_p50=during.p50 / alone.p50,
        slowdown_p99=during.p99 / alone.p99,
    )


def gpu_promises(result: ScanResults) -> dict[str, bool]:
    """Returns what a GPU must keep."""
    shares = [
        row.bandwidth_share
        for row in result.scans
        if (row.numbers, row.batch, row.probes) == ("float16", PROMISED_BATCH, "all")
    ]
    promises = {
        f"scans during loads take at most {SWAP_SLOWDOWN_MAX} times as long (p99)": all(
            row.slowdown_p99 <= SWAP_SLOWDOWN_MAX for row in result.loads
        )
    }
    if shares:
        promises[
            f"{PROMISED_BATCH} questions scan float16 at {BANDWIDTH_SHARE_MIN:.0%} of the memory's "
            "bandwidth or more (largest shard)"
        ] = shares[-1] >= BANDWIDTH_SHARE_MIN
    return promises


def _print(console: Console, result: ScanResults) -> None:
    console.print(f"{result.device}: a copy moves {result.copied_bytes_per_s / 1e9:.1f} GB/s")
    for row in result.scans:
        console.print(
            f"{row.numbers}, {row.rows:,} rows, {row.batch} questions, {row.probes} clusters: p50 "
            f"{row.scan_ms.p50:.3f} ms, p99 {row.scan_ms.p99:.3f} ms, "
            f"{row.scanned_bytes / 1e6:.0f} MB, {row.bandwidth_share:.0%} of the bandwidth"
        )
    for load in result.loads:
        console.print(
            f"{load.numbers}, {load.rows:,} rows: loads of {load.load_ms.p50:.3f} ms (p50), "
            f"{load.loaded_bytes_per_s / 1e6:.0f} MB/s, beside scans "
            f"{load.loaded_bytes_per_s_during_scans / 1e6:.0f} MB/s; scans beside loads take "
            f"{load.slowdown_p50:.2f} (p50) and {load.slowdown_p99:.2f} (p99) times as long"
        )


def main() -> None:
    """Reads the options, and measures. Ends with 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rows", default="100000,400000", help="rows of the shard, with commas")
    parser.add_argument("--nprobe", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement, at least")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    options = ScanOptions(
        device=given.device,
        rows=tuple(map(int, given.rows.split(","))),
        nprobe=given.nprobe,
        seconds=given.seconds,
        json_file=given.json,
    )
    sys.exit(0 if run(options) else 1)


if __name__ == "__main__":
    main()
