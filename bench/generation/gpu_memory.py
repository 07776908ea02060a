"""`carpool bench gpu-memory`: is the chosen split of a GPU as good as the best of a sweep?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.command import reported
from bench.core.machine import data_file
from bench.core.progress import Tell, progress_bars
from bench.core.report import RunStart, finish
from bench.data.evaluation import CORPUS, EvaluationData, find_data, read_passages, read_vectors
from bench.data.trace import QUESTIONS, cluster_quickly, read_questions
from bench.generation.cli import GpuMemoryOptions
from bench.generation.gpu_cases import (
    MIXES,
    SEARCHERS,
    SERVERS,
    LlmShape,
    RequestMix,
    SearcherShape,
)
from bench.generation.gpu_pipeline import Question, answers_per_s
from bench.generation.gpu_search import Int64, SearchCosts, ShardedSearch
from bench.generation.paged_engine import LlmStepCosts, PagedEngine
from carpool.disk.centroids import probe
from carpool.gpu import Gpu
from searcher.plan.gpu_memory import (
    KEPT_BYTES,
    OVERHEAD_BYTES,
    STEP_OVERHEAD_US,
    GpuMemory,
    MeasuredRates,
    Rates,
    choose_gpu_split,
    generation_model,
    retrieval_points,
)
from searcher.plan.hot_set import NestedHotSets, nested_hot_sets
from searcher.plan.search_times import SearchTimes, TimeSample, fit_search_times

NLIST, NPROBE = 1000, 73
"""The default of an index of a million passages."""
SHARE_MIN = 0.95
SWEEP = 9
"""Sizes of the KV cache that are simulated."""
SCAN_NS, QUERY_US = 31.0, 1_080.0
"""A row of codes, and a query beside its scans, on one thread: the line through the windows of 100
of search-1m-codes-100.json (10 of 100 clusters) and search-1m-codes-1000.json (24 of 1000).
"""
LAUNCH_US = 100.0
SCAN_SHARE = 0.5
"""Of the GPU's memory bandwidth, which a scan of the shard reaches: an assumption."""
ROW_BYTES = 768
"""384 numbers of 2 bytes."""
FRAME_TOKENS = 150
CHARS_A_TOKEN = 4
TOKENS_MAX = 8_192
"""Of prompt and answer: vLLM needs a KV cache for one such sequence."""
SEQUENCES_MAX = 256
ANSWER_TOKENS_MIN = 4
ANSWER_MEANS_MAX = 4
"""The longest answer over the mean one."""
MEASURED_POINTS = 5
MEASURED_BATCHES = (1, 2, 4, 8, 16, 32, 64)
MEASURED_SHARES = (0.25, 0.5, 0.75, 1.0)


class SplitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A split, and the simulated answers a second with it. `to_best`: of the best of the sweep."""

    kv_bytes: int
    shard_bytes: int
    per_s: float
    to_best: float = 0.0


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, model, request mix and searcher. `modelled`: chosen with the stated model of the
    LLM; `measured`: with `MEASURED_POINTS` rates of the simulated LLM. `no_shard`, `all_shard`: the
    ends of the sweep. `limit`, `reason`: of `modelled`.
    """

    gpu: str
    llm: str
    mix: str
    searcher: str
    prompt_tokens: int
    sweep: tuple[SplitRow, ...]
    best: SplitRow
    modelled: SplitRow
    measured: SplitRow
    no_shard: SplitRow
    all_shard: SplitRow
    limit: str
    reason: str


class GpuMemoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """All cases, and the worst of each column of `CaseResult`."""

    cases: tuple[CaseResult, ...]
    worst_modelled: float
    worst_measured: float
    worst_no_shard: float
    worst_all_shard: float


@dataclass(frozen=True, kw_only=True)
class World:
    """What all cases share. `asked`: of the first half of the questions, which choose; `held_out`:
    of the second half, which judge. (n, nprobe) int64. `rows`: of each cluster of the real passages
    """

    asked: Int64
    held_out: Int64
    rows: Int64
    passage_chars: Int64


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case, and what simulates it."""

    gpu: Gpu
    llm: LlmShape
    mix: RequestMix
    searcher: SearcherShape
    memory: GpuMemory
    questions: tuple[Question, ...]
    rows: Int64
    sets: NestedHotSets
    costs: SearchCosts

    def engine(self, kv_bytes: int) -> PagedEngine:
        """Returns a new LLM server."""
        costs = LlmStepCosts(
            overhead_us=STEP_OVERHEAD_US,
            weights_bytes=self.llm.weights_bytes,
            kv_bytes_a_token=self.llm.kv_bytes_a_token,
            flops_a_token=2.0 * self.llm.weight_count,
            bytes_per_s=self.gpu.bytes_per_s,
            flops_per_s=self.gpu.flops_per_s,
        )
        return PagedEngine(costs, kv_bytes=kv_bytes, sequences_max=SEQUENCES_MAX)

    def simulate(self, kv_bytes: int, shard_bytes: int) -> SplitRow:
        """Returns the answers a second with this split."""
        count = int(np.searchsorted(self.sets.size_bytes, shard_bytes, side="right")) - 1
        hot = np.zeros(len(self.rows), bool)
        hot[self.sets.clusters[:count]] = True
        search = ShardedSearch(self.costs, self.rows, hot)
        per_s = answers_per_s(self.questions, search, self.engine(kv_bytes))
        return SplitRow(kv_bytes=kv_bytes, shard_bytes=shard_bytes, per_s=round(per_s, 2))


def run(options: GpuMemoryOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    start = RunStart.now()
    data = find_data(options.data)
    paths = [data.corpus_path, *(data.vectors_path(name) for name in (CORPUS, *QUESTIONS))]
    with threadpool_limits(limits=1), progress_bars() as tell:
        results = measure(read_world(data, options.seed), options, tell)
    report = start.report(
        "gpu-memory",
        settings=reported(options),
        promises=promises_of(results),
        results=results,
        data=tuple(map(data_file, paths)),
    )
    return finish(report, options.json_file, lambda console: print_gpu_memory(console, results))


def read_world(data: EvaluationData, seed: int) -> World:
    """Returns real probes of real questions over clusters of the real passages. Blocks."""
    vectors = read_vectors(data.vectors_path(CORPUS))
    clustered = cluster_quickly(vectors, nlist=NLIST, seed=seed)
    probes = probe(clustered.centroids, read_questions(data, seed), NPROBE).astype(np.int64)
    half = len(probes) // 2
    return World(
        asked=probes[:half],
        held_out=probes[half:],
        rows=np.bincount(clustered.clusters, minlength=NLIST).astype(np.int64),
        passage_chars=np.array([len(one.text) for one in read_passages(data.corpus_path)]),
    )


def measure(world: World, options: GpuMemoryOptions, tell: Tell) -> GpuMemoryResult:
    """Returns all cases. Blocks for minutes."""
    wanted = [(*server, mix, one) for server in SERVERS for mix in MIXES for one in SEARCHERS]
    cases = []
    for number, (gpu, llm, mix, searcher) in enumerate(wanted):
        tell("cases", number, len(wanted))
        case = make_case(world, options, gpu, llm, mix, searcher)
        cases.append(measure_case(world, options, case))
    tell("cases", len(wanted), len(wanted))
    return GpuMemoryResult(
        cases=tuple(cases),
        worst_modelled=min(one.modelled.to_best for one in cases),
        worst_measured=min(one.measured.to_best for one in cases),
        worst_no_shard=min(one.no_shard.to_best for one in cases),
        worst_all_shard=min(one.all_shard.to_best for one in cases),
    )


def make_case(
    world: World,
    options: GpuMemoryOptions,
    gpu: Gpu,
    llm: LlmShape,
    mix: RequestMix,
    searcher: SearcherShape,
) -> Case:
    """Returns a case: questions with lengths of their own, and an index of as many rows."""
    rows = np.round(world.rows * (searcher.rows / world.rows.sum())).astype(np.int64)
    return Case(
        gpu=gpu,
        llm=llm,
        mix=mix,
        searcher=searcher,
        memory=GpuMemory(
            total_bytes=gpu.total_bytes,
            llm_fixed_bytes=llm.weights_bytes + OVERHEAD_BYTES,
            kept_bytes=KEPT_BYTES,
            kv_bytes_min=TOKENS_MAX * llm.kv_bytes_a_token,
        ),
        questions=make_questions(world, mix, options.questions, options.seed),
        rows=rows,
        sets=nested_hot_sets(list(world.asked), rows * ROW_BYTES),
        costs=SearchCosts(
            threads=searcher.threads,
            scan_ns=SCAN_NS,
            query_us=QUERY_US,
            launch_us=LAUNCH_US,
            gpu_bytes_per_s=SCAN_SHARE * gpu.bytes_per_s,
            row_bytes=ROW_BYTES,
        ),
    )


def make_questions(world: World, mix: RequestMix, count: int, seed: int) -> tuple[Question, ...]:
    """Returns held-out questions, with prompts of real passages, and answers of drawn lengths."""
    random = np.random.default_rng(seed)
    probes = world.held_out[random.integers(len(world.held_out), size=count)]
    chars = np.minimum(
        world.passage_chars[random.integers(len(world.passage_chars), size=(count, mix.passages))],
        mix.passage_chars,
    ).sum(axis=1)
    answers = np.clip(
        random.exponential(mix.answer_tokens, count),
        ANSWER_TOKENS_MIN,
        ANSWER_MEANS_MAX * mix.answer_tokens,
    )
    return tuple(
        Question(
            clusters=clusters,
            prompt_tokens=int(prompt) // CHARS_A_TOKEN + FRAME_TOKENS,
            answer_tokens=int(answer),
        )
        for clusters, prompt, answer in zip(probes, chars, answers, strict=True)
    )


def measure_case(world: World, options: GpuMemoryOptions, case: Case) -> CaseResult:
    """Chooses a split twice, and simulates both and the sweep."""
    # What chooses is drawn anew: it knows other questions of the same kind.
    known = make_questions(world, case.mix, options.questions, options.seed + 1)
    prompt_tokens = round(float(np.mean([one.prompt_tokens for one in known])))
    modelled = generation_model(
        bytes_per_s=case.gpu.bytes_per_s,
        flops_per_s=case.gpu.flops_per_s,
        weights_bytes=case.llm.weights_bytes,
        weight_count=case.llm.weight_count,
        kv_bytes_a_token=case.llm.kv_bytes_a_token,
        prompt_tokens=prompt_tokens,
        answer_tokens=round(float(np.mean([one.answer_tokens for one in known]))),
        sequences_max=SEQUENCES_MAX,
    )
    points = retrieval_points(
        case.sets,
        search_times(case, world.asked, options.seed),
        scan_bytes_per_s=case.costs.gpu_bytes_per_s,
    )
    retrieval = MeasuredRates(points)
    index_bytes = int(case.sets.size_bytes[-1])

    def chosen(generation: Rates) -> tuple[SplitRow, str, str]:
        split = choose_gpu_split(case.memory, generation, retrieval, shard_bytes_max=index_bytes)
        row = case.simulate(split.kv_bytes, split.shard_bytes)
        return row, split.limit or "", split.reason

    by_model, limit, reason = chosen(modelled)
    by_points, *_ = chosen(measured_generation(case, known))
    rows = [case.simulate(*sizes) for sizes in sweep_sizes(case.memory, index_bytes, SWEEP)]
    best = max([*rows, by_model, by_points], key=lambda row: row.per_s)

    def judged(row: SplitRow) -> SplitRow:
        return msgspec.structs.replace(row, to_best=round(row.per_s / best.per_s, 4))

    return CaseResult(
        gpu=case.gpu.name,
        llm=case.llm.name,
        mix=case.mix.name,
        searcher=case.searcher.name,
        prompt_tokens=prompt_tokens,
        sweep=tuple(map(judged, rows)),
        best=judged(best),
        modelled=judged(by_model),
        measured=judged(by_points),
        no_shard=judged(rows[-1]),
        all_shard=judged(rows[0]),
        limit=limit,
        reason=reason,
    )


def search_times(case: Case, probes: Int64, seed: int) -> SearchTimes:
    """Returns what a searcher measures when it starts: batches over a share of their clusters."""
    random = np.random.default_rng(seed)
    search = ShardedSearch(case.costs, case.rows, np.zeros(len(case.rows), bool))
    samples = []
    for batch in MEASURED_BATCHES:
        for share in MEASURED_SHARES:
            drawn = probes[random.integers(len(probes), size=batch)]
            count = round(share * drawn.shape[1])
            parts = [random.choice(one, count, replace=False) for one in drawn]
            samples.append(TimeSample(batch, share, search.batch_us(parts)))
    return fit_search_times(samples, case.searcher.threads)


def measured_generation(case: Case, known: Sequence[Question]) -> MeasuredRates:
    """Returns the rates of the LLM alone, simulated with some sizes of the KV cache."""
    least, most = case.memory.kv_bytes_min, case.memory.shared_bytes
    sizes = np.geomspace(least, most, MEASURED_POINTS).astype(np.int64).tolist()
    return MeasuredRates([(size, answers_per_s(known, None, case.engine(size))) for size in sizes])


def sweep_sizes(memory: GpuMemory, index_bytes: int, count: int) -> list[tuple[int, int]]:
    """Returns `count` splits, bytes of KV cache and shard, from the least KV cache to all of it."""
    least, most = memory.kv_bytes_min, memory.shared_bytes
    sizes = np.linspace(least, most, count).astype(np.int64).tolist()
    return [(kv_bytes, min(most - kv_bytes, index_bytes)) for kv_bytes in sizes]


def promises_of(result: GpuMemoryResult) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    return {
        f"the modelled choice answers {SHARE_MIN} of the best of the sweep, in every case": (
            result.worst_modelled >= SHARE_MIN
        ),
        f"the choice by measured points answers {SHARE_MIN} of it, in every case": (
            result.worst_measured >= SHARE_MIN
        ),
    }


def print_gpu_memory(console: Console, result: GpuMemoryResult) -> None:
    """Prints one row for each case."""
    table = Table(
        *("GPU, model", "requests", "searcher", "best: KV, shard GiB", "answers a second"),
        *("chosen: KV, shard GiB", "of best", "measured", "no shard", "all shard", "limit"),
        title="One GPU for the KV cache and the shard: simulated",
    )
    for one in result.cases:
        table.add_row(
            f"{one.gpu}, {one.llm}",
            one.mix,
            one.searcher,
            _sizes(one.best),
            f"{one.best.per_s:.1f}",
            _sizes(one.modelled),
            *(
                f"{row.to_best:.3f}"
                for row in (one.modelled, one.measured, one.no_shard, one.all_shard)
            ),
            one.limit,
        )
    console.print(table)
    console.print(
        f"worst of best: modelled {result.worst_modelled}, measured {result.worst_measured}, no "
        f"shard {result.worst_no_shard}, all shard {result.worst_all_shard}"
    )


def _sizes(row: SplitRow) -> str:
    return f"{row.kv_bytes / 2**30:.1f}, {row.shard_bytes / 2**30:.1f}"
