"""How one GPU is shared between the LLM's KV cache and the hot shard (HedraRAG 4.4, Eq. 2).

Use it when a searcher with a shard on the GPU and vLLM run on the same GPU. With a GPU of its own
the shard needs no choice.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, Protocol

import numpy as np

from carpool.errors import ConfigError
from searcher.plan.hot_set import NestedHotSets, batch_sizes
from searcher.plan.search_times import SearchTimes, batch_time_us

UTILIZATION_STEPS = 1_000
"""vLLM is told its share of the GPU's memory in steps of a thousandth."""
TIE_SHARE = 0.01
"""Rates that differ by less than this share are equal: no measurement is more exact."""

OVERHEAD_BYTES = 3 << 30
"""vLLM beside weights and KV cache. vLLM 0.6.4 logged 1.8 GiB of CUDA memory and 1.3 GiB of
activations for Llama 3 8B on a GPU of 80 GB (vllm-project/vllm, pull request 10511).
"""
KEPT_BYTES = 1 << 30
"""The searcher's CUDA context, and gaps in memory: an assumption."""
POINTS_MAX = 128
"""Of the curve of searches a second; lines between them are as good as more points."""
STEP_OVERHEAD_US = 2_000.0
"""Of a step of vLLM, beside the time of the GPU: an assumption."""

SplitLimit = Literal["llm", "search", "questions"]
"""What bounds the questions a second: the LLM, the search, or that no more are asked."""


class Rates(Protocol):
    """Questions a second by bytes of memory. More bytes never give a lower rate."""

    def __call__(self, size_bytes: int) -> float:
        """Returns the questions a second with this much memory, 0 or more."""
        ...


class MeasuredRates:
    """Rates of measured points, with lines between them. A call costs O(log points).

    A rate that is lower than one of fewer bytes is noise, and the higher one counts. Between 0
    bytes and the first point the rate falls in a line to 0. Behind the last point it stays.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """`points`: bytes and questions a second, by ascending bytes.

        Raises `ConfigError` where they are no curve.
        """
        sizes = [size_bytes for size_bytes, _ in points]
        rates = [per_s for _, per_s in points]
        if not points or sizes != sorted(set(sizes)) or sizes[0] < 0:
            raise ConfigError(
                f"rates need one point or more, by ascending bytes, each once; given: {sizes}"
            )
        if not all(math.isfinite(per_s) and per_s >= 0 for per_s in rates):
            raise ConfigError(f"rates must be numbers of 0 or more; given: {rates}")
        if sizes[0] > 0:
            sizes, rates = [0, *sizes], [0.0, *rates]
        self._sizes = sizes
        self._rates = list(accumulate(rates, max))

    def __call__(self, size_bytes: int) -> float:
        """Returns the rate at `size_bytes`."""
        right = bisect_right(self._sizes, size_bytes)
        if right == len(self._sizes):
            return self._rates[-1]
        if right == 0:
            return 0.0
        low, high = self._sizes[right - 1 : right + 1]
        begin, end = self._rates[right - 1 : right + 1]
        return begin + (end - begin) * (size_bytes - low) / (high - low)


@dataclass(frozen=True, kw_only=True)
class GenerationModel:
    """Answers a second of an LLM server with continuous batching, where nothing was measured.

    As many sequences are in progress as fit the KV cache, `sequences_max` at most. An answer takes
    `answer_tokens` steps, and in this time every sequence gets one answer. A step costs `step_us`,
    and the larger of two times that overlap: to read memory, `read_us` for the weights and
    `sequence_read_us` for each sequence, and to compute, `token_us` for each token of prompts and
    answers. Prompts are computed in the same steps. The rate rises with the sequences, and
    saturates where computing, or reading KV caches, takes longest. Tokens are means;
    `prompt_tokens` are only those that the prefix cache does not have.
    """

    kv_bytes_a_token: int
    prompt_tokens: int
    answer_tokens: int
    sequences_max: int
    step_us: float
    read_us: float
    sequence_read_us: float
    token_us: float

    def __call__(self, size_bytes: int) -> float:
        """Returns the answers a second with a KV cache of `size_bytes`."""
        tokens = self.prompt_tokens + self.answer_tokens
        sequences = min(size_bytes // (tokens * self.kv_bytes_a_token), self.sequences_max)
        if sequences == 0:
            return 0.0
        read_us = self.read_us + sequences * self.sequence_read_us
        compute_us = sequences * tokens / self.answer_tokens * self.token_us
        return sequences * 1e6 / (self.answer_tokens * (self.step_us + max(read_us, compute_us)))


def retrieval_points(
    sets: NestedHotSets,
    times: SearchTimes,
    *,
    target_us: float = 0.0,
    scan_bytes_per_s: float = math.inf,
) -> list[tuple[int, float]]:
    """Returns bytes of hot sets, and the searches a second with each: points of `MeasuredRates`.

    `target_us`: only batches count whose search takes at most half of it (VectorLiteRAG, Eq. 9); 0:
    all. `scan_bytes_per_s`: what the GPU scans. It works beside the threads, so the slower side
    decides. The paper has no such term: its GPU is never the slower side.
    """
    last = len(sets.size_bytes) - 1
    numbers = np.unique(np.linspace(0, last, min(last, POINTS_MAX) + 1).astype(np.int64))
    cpu_per_s = [_searches_per_s(sets, number, times, target_us) for number in numbers.tolist()]
    hot_clusters = np.cumsum(np.diff(sets.size_bytes, prepend=0) > 0)  # without empty ones
    hit_bytes = sets.means * sets.nprobe * sets.size_bytes / np.maximum(hot_clusters, 1)
    per_s = np.minimum(cpu_per_s, scan_bytes_per_s / np.maximum(hit_bytes[numbers], 1))
    # Of hot sets of the same bytes the largest counts: its last clusters are empty.
    points = dict(zip(sets.size_bytes[numbers].tolist(), per_s.tolist(), strict=True))
    return sorted(points.items())


def _searches_per_s(
    sets: NestedHotSets, number: int, times: SearchTimes, target_us: float
) -> float:
    """The searches a second of the best size of batch (Eq. 6); 0 where none meets the target."""
    hits = sets.hits(number, cautious=True)
    rates = [0.0]
    for batch in batch_sizes(times.threads):
        took_us = batch_time_us(times, hits, batch)
        if target_us <= 0 or 2 * took_us <= target_us:
            rates.append(batch * 1e6 / took_us)
    return max(rates)


def generation_model(
    *,
    bytes_per_s: float,
    flops_per_s: float,
    weights_bytes: int,
    weight_count: int,
    kv_bytes_a_token: int,
    prompt_tokens: int,
    answer_tokens: int,
    sequences_max: int,
) -> GenerationModel:
    """Returns the times of the LLM's steps from what the GPU reads and computes.

    A step reads all weights, and of each sequence its KV cache, whose answer is half written on
    average. A token takes two operations for each weight.
    """
    kv_bytes = (prompt_tokens + answer_tokens / 2) * kv_bytes_a_token
    return GenerationModel(
        kv_bytes_a_token=kv_bytes_a_token,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        sequences_max=sequences_max,
        step_us=STEP_OVERHEAD_US,
        read_us=1e6 * weights_bytes / bytes_per_s,
        sequence_read_us=1e6 * kv_bytes / bytes_per_s,
        token_us=2e6 * weight_count / flops_per_s,
    )


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """One GPU. `llm_fixed_bytes`: weights, activations and what else vLLM has beside the KV cache.

    `kept_bytes`: what neither the LLM nor the shard may have: the searcher's CUDA context, and some
    room. `kv_bytes_min`: a KV cache of one sequence of the longest length, without which vLLM does
    not start.
    """

    total_bytes: int
    llm_fixed_bytes: int
    kept_bytes: int
    kv_bytes_min: int

    @property
    def shared_bytes(self) -> int:
        """What the KV cache and the shard have together. Negative: the LLM alone does not fit."""
        return self.total_bytes - self.llm_fixed_bytes - self.kept_bytes


@dataclass(frozen=True, kw_only=True)
class GpuSplit:
    """What vLLM and the shard get. `utilization`: vLLM's share of all memory, 0 to 1.

    `answers_per_s`, `searches_per_s`: what the curves say; None where the bytes were given.
    """

    kv_bytes: int
    shard_bytes: int
    utilization: float
    reason: str
    limit: SplitLimit | None = None
    answers_per_s: float | None = None
    searches_per_s: float | None = None


def choose_gpu_split(
    memory: GpuMemory,
    generation: Rates,
    retrieval: Rates,
    *,
    shard_bytes_max: int,
    wanted_per_s: float = math.inf,
) -> GpuSplit:
    """Returns the split with the most questions a second. Raises `ConfigError`: too little memory.

    `generation`: answers a second by bytes of KV cache; `retrieval`: searches a second by bytes of
    the shard; `shard_bytes_max`: the whole index on the device; `wanted_per_s`: no more is asked.
    Costs O(`UTILIZATION_STEPS`) calls of both.

    Deviations from Eq. 2: every question is one retrieval and one answer, so both have the same
    rate. Of KV sizes whose throughputs are within `TIE_SHARE` the largest is chosen, because the
    GPU belongs to the LLM.
    """
    # argmax over KV size of min{T_G(KV size), T_R(GPU - KV size)}
    throughputs = [
        (step, min(generation(kv_bytes), retrieval(shard_bytes), wanted_per_s))
        for step in _steps(memory)
        for kv_bytes, shard_bytes in [_bytes_of(memory, step, shard_bytes_max)]
    ]
    best = max(throughput for _, throughput in throughputs)
    step = max(at for at, throughput in throughputs if throughput >= best * (1 - TIE_SHARE))
    kv_bytes, shard_bytes = _bytes_of(memory, step, shard_bytes_max)
    answers, searches = generation(kv_bytes), retrieval(shard_bytes)
    limit: SplitLimit = "search" if searches < answers else "llm"
    if min(answers, searches) >= wanted_per_s * (1 - TIE_SHARE):
        limit = "questions"
    return GpuSplit(
        kv_bytes=kv_bytes,
        shard_bytes=shard_bytes,
        utilization=step / UTILIZATION_STEPS,
        reason=_reason(limit, answers, searches, wanted_per_s, shard_bytes),
        limit=limit,
        answers_per_s=answers,
        searches_per_s=searches,
    )


def split_for_shard(memory: GpuMemory, shard_bytes: int) -> GpuSplit:
    """Returns the split where the bytes of the shard are given, and vLLM has the rest.

    Raises `ConfigError` where that is too little for vLLM.
    """
    steps = [step for step in _steps(memory) if _left_bytes(memory, step) >= shard_bytes]
    if not steps:
        most = _left_bytes(memory, _steps(memory)[0])
        raise ConfigError(
            f"a shard of {gib(shard_bytes)} leaves vLLM less than the "
            f"{gib(memory.llm_fixed_bytes + memory.kv_bytes_min)} that it needs, on a GPU of "
            f"{gib(memory.total_bytes)}: set searcher.shard_bytes_max to {most} bytes at most"
        )
    return GpuSplit(
        kv_bytes=memory.shared_bytes - _left_bytes(memory, steps[-1]),
        shard_bytes=shard_bytes,
        utilization=steps[-1] / UTILIZATION_STEPS,
        reason="searcher.shard_bytes_max says so; the KV cache has the rest",
    )


def split_for_utilization(
    memory: GpuMemory, utilization: float, *, shard_bytes_max: int
) -> GpuSplit:
    """Returns the split where vLLM's share is given, and the shard has the rest.

    `shard_bytes_max`: no larger shard is wanted. Raises `ConfigError` where nothing is left.
    """
    llm_bytes = math.ceil(memory.total_bytes * utilization)
    left_bytes = memory.total_bytes - memory.kept_bytes - llm_bytes
    if left_bytes <= 0:
        raise ConfigError(
            f"--gpu-memory-utilization={utilization:g} leaves nothing for the shard of "
            f"{gib(memory.total_bytes)}: the searcher itself needs {gib(memory.kept_bytes)}. "
            "Lower it, or take it out of vllm.extra_args, and `carpool up` chooses"
        )
    return GpuSplit(
        kv_bytes=max(0, llm_bytes - memory.llm_fixed_bytes),
        shard_bytes=min(left_bytes, shard_bytes_max),
        utilization=utilization,
        reason="vllm.extra_args says so; the shard has the rest",
    )


def _steps(memory: GpuMemory) -> range:
    """Returns vLLM's shares that leave both what they need, in `UTILIZATION_STEPS`."""
    needed_bytes = memory.llm_fixed_bytes + memory.kv_bytes_min
    first = -(-needed_bytes * UTILIZATION_STEPS // memory.total_bytes)
    last = (memory.total_bytes - memory.kept_bytes) * UTILIZATION_STEPS // memory.total_bytes
    if first > last:
        raise ConfigError(
            f"a GPU of {gib(memory.total_bytes)} is too small for this LLM beside a shard: its "
            f"weights and activations take {gib(memory.llm_fixed_bytes)}, its shortest KV cache "
            f"{gib(memory.kv_bytes_min)}, and the searcher {gib(memory.kept_bytes)}. Serve a "
            "smaller model, lower vllm.model_tokens_max, or set searcher.shard=none"
        )
    return range(first, last + 1)


def _left_bytes(memory: GpuMemory, step: int) -> int:
    llm_bytes = math.ceil(memory.total_bytes * step / UTILIZATION_STEPS)  # as vLLM rounds
    return memory.total_bytes - memory.kept_bytes - llm_bytes


def _bytes_of(memory: GpuMemory, step: int, shard_bytes_max: int) -> tuple[int, int]:
    """Returns the bytes of the KV cache and of the shard where vLLM has `step` of the memory.

    With vLLM's largest share there is no shard: what is left is less than a step.
    """
    left_bytes = _left_bytes(memory, step)
    is_all = left_bytes < memory.total_bytes / UTILIZATION_STEPS
    shard_bytes = 0 if is_all else min(left_bytes, shard_bytes_max)
    return memory.shared_bytes - left_bytes, shard_bytes


def _reason(
    limit: SplitLimit, answers: float, searches: float, wanted_per_s: float, shard_bytes: int
) -> str:
    rates = f"the LLM can answer {answers:,.1f} questions a second, search {searches:,.1f}"
    if limit == "questions":
        return f"{rates}; that is enough for the {wanted_per_s:,.1f} that are wanted"
    if limit == "search":
        return f"{rates}; no other split gives {TIE_SHARE:.0%} more"
    if shard_bytes == 0:
        return f"{rates} without a shard"
    return f"{rates}; with a smaller shard, search would be the slower of both"


def gib(size_bytes: int) -> str:
    """Returns the bytes in GiB, to print."""
    return f"{size_bytes / 2**30:,.2f} GiB"
