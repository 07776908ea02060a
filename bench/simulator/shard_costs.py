"""Measures what scans of codes and loads of clusters take, for the simulated searcher.

CPU time of one thread, so that other processes matter little.
"""

from __future__ import annotations

import os
import time

import faiss
import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LinearRegression

from bench.simulator.shard_searcher import SearcherCosts
from carpool.codes.margin import first_count
from carpool.disk.index import OpenIndex
from searcher.codes.load import load_codes
from searcher.plan.search_times import QUERIES_A_SCAN
from searcher.shard.cluster_rows import ClusterRowsReader
from searcher.store.files import SegmentFiles

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

TOP_K = 10
CALLS = 300
LOADS = 60


def measure_searcher(
    index: OpenIndex, codec: str, queries: Float32, probes: Int64, seed: int
) -> SearcherCosts:
    """Returns the costs of this machine. Loads all codes, and blocks for some seconds.

    `queries`: (n, dim) float32; `probes`: (n, nprobe) int64, the clusters of each.
    """
    random = np.random.default_rng(seed)
    faiss.omp_set_num_threads(1)  # as the threads of a searcher
    call_us, query_us, pair_us, row_us = _scan_costs(index, codec, queries, probes, random)
    read_row_us, load_row_us = _load_costs(index, random)
    cores = len(os.sched_getaffinity(0))
    return SearcherCosts(
        call_us=call_us,
        query_us=query_us,
        pair_us=pair_us,
        row_us=row_us,
        read_row_us=read_row_us,
        load_row_us=load_row_us,
        threads=cores,
        cores=cores,
    )


def _scan_costs(
    index: OpenIndex, codec: str, queries: Float32, probes: Int64, random: np.random.Generator
) -> list[float]:
    """Costs of a call, of a query, of its cluster and of its row, in microseconds.

    The line that fits the times of calls best, with no negative part.
    """
    codes = load_codes(index.open_codes(codec), index.centroids, direct_io="auto")
    count = first_count(codec, "default", TOP_K)
    facts, took_us = [], []
    for _ in range(CALLS):
        size = min(len(queries), int(random.integers(1, QUERIES_A_SCAN + 1)))
        some = random.choice(len(queries), size, replace=False)
        kept = random.integers(1, probes.shape[1] + 1)
        clusters = [random.permutation(probes[query])[:kept] for query in some]
        began_ns = time.thread_time_ns()
        codes.scanner.scan(queries[some], clusters, count)
        took_us.append((time.thread_time_ns() - began_ns) / 1_000)
        probed = np.concatenate(clusters)
        facts.append((1, size, len(probed), int(codes.row_counts[probed].sum())))
    line = LinearRegression(positive=True, fit_intercept=False)
    costs: list[float] = line.fit(np.array(facts, float), np.array(took_us)).coef_.tolist()
    return costs


def _load_costs(index: OpenIndex, random: np.random.Generator) -> tuple[float, float]:
    """Microseconds a row: of the disk, the least that was seen, and of a core, the median.

    A core reads, verifies and converts rows to float16 as the shard on a GPU does.
    """
    reader = ClusterRowsReader(index, SegmentFiles(index.segment_paths, "auto"))
    rows_max = max(extent.row_count for extent in index.extents)
    staging = torch.empty((rows_max, index.layout.dimension), dtype=torch.float16)
    read_us, load_us = [], []
    try:
        for cluster in random.permutation(len(index.extents))[:LOADS].tolist():
            if not index.extents[cluster].row_count:
                continue
            began_ns, cpu_began_ns = time.perf_counter_ns(), time.thread_time_ns()
            vectors = reader.read(cluster)
            staging[: len(vectors)] = torch.from_numpy(vectors)
            cpu_ns = time.thread_time_ns() - cpu_began_ns
            rows = index.extents[cluster].row_count
            read_us.append(max(0, time.perf_counter_ns() - began_ns - cpu_ns) / 1_000 / rows)
            load_us.append(cpu_ns / 1_000 / rows)
    finally:
        reader.close()
    return float(np.quantile(read_us, 0.1)), float(np.median(load_us))
