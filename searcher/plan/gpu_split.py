"""How one GPU is shared between the LLM's KV cache and the hot shard (HedraRAG 4.4, Eq. 2). Pure.

Use it when a searcher with a shard and an LLM server run on the same GPU, and the rates of both
were measured. A shard with a GPU of its own needs no choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carpool.errors import ConfigError

STEPS = 1_000
"""Splits that are compared."""
TIE_SHARE = 0.01
"""Rates that differ by less than this share are equal: no measurement is more exact."""

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Rates = Sequence[tuple[int, float]]
"""Measured points, by ascending bytes: bytes of memory, and questions a second."""


@dataclass(frozen=True, kw_only=True)
class GpuSplit:
    """What the KV cache and the shard get, and the rates with it."""

    kv_bytes: int
    shard_bytes: int
    answers_per_s: float
    searches_per_s: float


def choose_gpu_split(answers: Rates, searches: Rates, kept_bytes: int = 0) -> GpuSplit:
    """Returns the split with the most questions a second. Raises `ConfigError`: no curves.

    `answers`: answers a second by bytes of the KV cache; the last point is that of an LLM server
    without a shard beside it, whose bytes are shared. `searches`: searches a second by bytes of the
    shard; the first point is without one. Rates between points are on a line; a rate that is lower
    than one of fewer bytes is noise, and the higher one counts; a KV cache smaller than the first
    point was not measured, and is not chosen. `kept_bytes`: what a process with a shard takes
    beside the shard.

    Deviations from Eq. 2: every question is one search and one answer, so both have the same rate;
    of splits within `TIE_SHARE` the one with the smallest shard is chosen, because the GPU belongs
    to the LLM.
    """
    _check("answers", answers)
    _check("searches", searches)
    if searches[0][0] != 0:
        raise ConfigError("the first point of searches must be without a shard: [0, rate]")
    shared_bytes = answers[-1][0]
    shards_max = max(0, shared_bytes - answers[0][0] - kept_bytes)
    shards = np.linspace(0, shards_max, STEPS + 1).astype(np.int64)
    caches = shared_bytes - shards - kept_bytes * (shards > 0)
    answers_per_s = _rates_at(answers, caches)
    searches_per_s = _rates_at(searches, shards)
    # argmax over KV size of min{T_G(KV size), T_R(GPU - KV size)}
    throughputs = np.minimum(answers_per_s, searches_per_s)
    at = int((throughputs >= throughputs.max() * (1 - TIE_SHARE)).argmax())
    return GpuSplit(
        kv_bytes=int(caches[at]),
        shard_bytes=int(shards[at]),
        answers_per_s=float(answers_per_s[at]),
        searches_per_s=float(searches_per_s[at]),
    )


def _check(name: str, rates: Rates) -> None:
    sizes = [size_bytes for size_bytes, _ in rates]
    if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 0:
        raise ConfigError(
            f"{name} need one point or more, by ascending bytes, each once; given: {sizes}"
        )
    if not all(math.isfinite(per_s) and per_s >= 0 for _, per_s in rates):
        raise ConfigError(f"{name} must have rates of 0 or more; given: {list(rates)}")


def _rates_at(rates: Rates, sizes: Int64) -> Float64:
    known, per_s = zip(*rates, strict=True)
    found: Float64 = np.interp(sizes, known, np.maximum.accumulate(per_s))
    return found
