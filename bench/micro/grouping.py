"""The time of planning a window, and the bytes that its order saves: windows of real questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.machine import data_file
from bench.core.report import RunStart, finish
from bench.core.spread import Spread, spread
from bench.data.evaluation import CORPUS, Float32, find_data, read_vectors
from bench.data.trace import cluster_quickly
from bench.micro.grouping_replay import QueryClusters, ReplayRow, replay
from carpool.disk.centroids import probe
from grouper.plan.grouping import LINKAGE_NAMES, GroupingPolicy, PolicyName, grouping_policy
from grouper.plan.order import ORDER_NAMES, group_order
from grouper.plan.plan_groups import BEFORE_QUERIES, plan_groups
from grouper.settings import GrouperSettings

QUESTIONS = ("queries-hotpotqa", "queries-nq")
PLAN_MS_MAX = 2.0
"""The longest time that 99 of 100 windows may take to group and order."""
ROW_NUMBER_BYTES = 8
CACHE_SHARE = 0.4
"""Share of the clusters in the replay's cache."""
GROUPER = GrouperSettings()
"""Its policy and order are timed; all of them are replayed."""


class GroupingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    nlist: int
    nprobe: int
    window_queries: int
    windows: int
    seed: int


class PlanTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds a window. `plan`: Jaccard, groups and order; `plan_cpu`: of it on the CPU."""

    plan: Spread
    plan_cpu: Spread
    probe: Spread


class GroupingResult(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the plan, and what each policy and order reads."""

    times_ms: PlanTimes
    replayed: tuple[ReplayRow, ...]


def run(data_dir: Path | None, options: GroupingOptions, json_file: Path | None) -> bool:
    """Measures, prints and reports; returns whether the promise was kept.

    Raises `ConfigError` for missing data.
    """
    start = RunStart.now()
    data = find_data(data_dir)
    paths = [data.vectors_path(name) for name in (CORPUS, *QUESTIONS)]
    corpus, *questions = (read_vectors(path) for path in paths)
    with threadpool_limits(limits=1):
        results = measure(corpus, np.concatenate(questions), options)
    promise = f"99 of 100 windows are grouped and ordered in {PLAN_MS_MAX:g} ms"
    report = start.report(
        "grouping",
        settings=options,
        promises={promise: results.times_ms.plan.p99 <= PLAN_MS_MAX},
        results=results,
        data=tuple(map(data_file, paths)),
    )
    return finish(report, json_file, lambda console: print_result(console, options, results))


def measure(corpus: Float32, questions: Float32, options: GroupingOptions) -> GroupingResult:
    """Returns the figures of `options`. `corpus`, `questions`: (n, dim) float32, row-normalised."""
    centroids, sizes_bytes = trained(corpus, options.nlist, options.seed)
    clusters = probed(centroids, questions, options.nprobe)
    order = np.random.default_rng(options.seed)
    return GroupingResult(
        times_ms=plan_times(centroids, questions, clusters, options, order),
        replayed=replay_all(
            _all_once(clusters, options.window_queries, order), sizes_bytes, options
        ),
    )


def trained(corpus: Float32, nlist: int, seed: int) -> tuple[Float32, npt.NDArray[np.int64]]:
    """Returns centroids, (nlist, dim) float32, and the bytes of each cluster: (nlist,) int64."""
    found = cluster_quickly(corpus, nlist=nlist, seed=seed)
    rows = np.bincount(found.clusters, minlength=nlist).astype(np.int64)
    return found.centroids, rows * (corpus.shape[1] * 4 + ROW_NUMBER_BYTES)


def probed(centroids: Float32, questions: Float32, nprobe: int) -> list[QueryClusters]:
    """Returns C(q) of each question, nearest first."""
    return [tuple(row) for row in probe(centroids, questions, nprobe).tolist()]


def plan_times(
    centroids: Float32,
    questions: Float32,
    clusters: Sequence[QueryClusters],
    options: GroupingOptions,
    chooser: np.random.Generator,
) -> PlanTimes:
    """Times `options.windows` windows, each of distinct questions chosen at random."""
    policy = grouping_policy(GROUPER.policy, jaccard_similarity_min=GROUPER.jaccard_similarity_min)
    order = group_order(GROUPER.order)
    plan_s, cpu_s, probe_s = [], [], []
    before: tuple[QueryClusters, ...] = ()
    for _ in range(options.windows):
        chosen = chooser.choice(len(clusters), options.window_queries, replace=False)
        window = [clusters[question] for question in chosen]
        vectors = questions[chosen]
        probe_s.append(_timed(partial(probe, centroids, vectors, options.nprobe))[0])
        wall_s, thread_s = _timed(
            partial(plan_groups, window, before=before, deadlines=(), policy=policy, order=order)
        )
        plan_s.append(wall_s)
        cpu_s.append(thread_s)
        before = tuple(window[-BEFORE_QUERIES:])
    plan, plan_cpu, probing = (
        spread(took * 1_000 for took in each) for each in (plan_s, cpu_s, probe_s)
    )
    assert plan is not None and plan_cpu is not None and probing is not None, (
        "at least one window is timed"
    )
    return PlanTimes(plan=plan, plan_cpu=plan_cpu, probe=probing)


def replay_all(
    windows: Sequence[Sequence[QueryClusters]],
    sizes_bytes: npt.NDArray[np.int64],
    options: GroupingOptions,
) -> tuple[ReplayRow, ...]:
    """Returns a row for every policy and order; the cache holds `cache_share` of the clusters."""
    cache_clusters = max(1, round(options.nlist * CACHE_SHARE))
    return tuple(
        replay(
            windows,
            policy,
            group_order(order),
            name=name,
            sizes_bytes=sizes_bytes,
            cache_clusters=cache_clusters,
        )
        for name, policy in _policies(GROUPER.jaccard_similarity_min)
        for order in ORDER_NAMES
    )


def print_result(console: Console, options: GroupingOptions, result: GroupingResult) -> None:
    """Prints times and replay as tables."""
    times = Table(
        "ms a window",
        "p50",
        "p99",
        "max",
        title=f"{options.windows} windows of {options.window_queries}",
    )
    names = {
        f"group ({GROUPER.policy}) and order ({GROUPER.order})": result.times_ms.plan,
        "  of it on the CPU": result.times_ms.plan_cpu,
        "probe, before it": result.times_ms.probe,
    }
    for name, found in names.items():
        times.add_row(name, f"{found.p50:.2f}", f"{found.p99:.2f}", f"{found.max:.2f}")
    console.print(times)
    base = result.replayed[0]
    table = Table(
        "policy",
        "order",
        "records",
        "by query",
        "of per_query",
        "by record",
        "done after",
        title=f"MB read a query: nlist {options.nlist}, nprobe {options.nprobe}, room for "
        f"{CACHE_SHARE:.0%}",
    )
    for row in result.replayed:
        table.add_row(
            row.policy.replace("agglomerative, ", "aggl. "),
            row.order,
            f"{row.records_a_window:.1f}",
            f"{row.by_query_mb:.3f}",
            f"{row.by_query_mb / base.by_query_mb:.2f}",
            f"{row.by_record_mb:.3f}",
            f"{row.completion_mb:.2f}",
        )
    console.print(table)


def _policies(theta: float) -> list[tuple[str, GroupingPolicy]]:
    """Every policy under the name of its row; `per_query` first: the rest is compared with it."""
    plain: tuple[PolicyName, ...] = ("per_query", "greedy")
    found = [(str(name), grouping_policy(name, jaccard_similarity_min=theta)) for name in plain]
    for linkage in LINKAGE_NAMES:
        policy = grouping_policy("agglomerative", jaccard_similarity_min=theta, linkage=linkage)
        found.append((f"agglomerative, {linkage}", policy))
    return [*found, ("per_window", grouping_policy("per_window", jaccard_similarity_min=theta))]


def _all_once(
    clusters: Sequence[QueryClusters], window_queries: int, chooser: np.random.Generator
) -> list[list[QueryClusters]]:
    """All questions, each once, in windows: full ones only."""
    shuffled = [clusters[question] for question in chooser.permutation(len(clusters))]
    full = len(shuffled) // window_queries * window_queries
    return [shuffled[start : start + window_queries] for start in range(0, full, window_queries)]


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and seconds that this thread had the CPU."""
    started_s, started_cpu_s = time.perf_counter(), time.thread_time()
    work()
    return time.perf_counter() - started_s, time.thread_time() - started_cpu_s
