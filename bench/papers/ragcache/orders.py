"""How many prompt tokens does an order save? RAGCache's order (5.2), ours, arrival, an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
from rich.console import Console

from bench.core.machine import data_file
from bench.core.run import BenchRun
from bench.core.tables import table_of
from bench.data.evaluation import CORPUS, TRAFFIC, EvaluationData, find_data
from bench.papers.options import RagCacheOptions
from bench.papers.ragcache.cache_aware import Arrival, CacheAware
from bench.papers.ragcache.prompts import passage_tokens, rendered
from bench.papers.ragcache.streams import StreamName, make_stream, natural_stream
from bench.simulator.prompt_cache import (
    CacheSize,
    computed_once,
    replay,
)
from generator.plan.cached_prefixes import CachedPrefixes

STATED = (
    "Figure 18: with cache-aware reordering, its window 32, the average time to the first token is "
    "1.2 to 2.1 times lower, at request rates slightly above the throughput (section 7.3)"
)
PASSAGES = 3
BACKLOG = 1024
PROMPTS = 3700
"""Of each stream."""
SIZE = CacheSize(blocks=727)
"""A vLLM with 1 GiB of KV cache for SmolLM2-135M: 728 blocks, of which it keeps one for itself."""
SHARE_MIN: dict[StreamName, float] = {"natural": 0.14, "zipf": 0.65, "ragpulse": 0.20}
"""Promised of `cached_prefix`."""


class OrderRow(msgspec.Struct, frozen=True, kw_only=True):
    """An order of prompts in a stream, and what was cached."""

    stream: StreamName
    order: str
    cached_share: float


OURS = "cached_prefix"
ORDERS: dict[str, type[CachedPrefixes]] = {
    "arrival": Arrival,
    "cache_aware": CacheAware,
    OURS: CachedPrefixes,
}


def run(options: RagCacheOptions) -> bool:
    """Runs the figure; returns whether every promise was kept. Takes minutes.

    Raises `ConfigError`.
    """
    run = BenchRun("ragcache orders", options)
    data = find_data(options.data)
    rows = measure(data, options.seed)
    paths = (data.corpus_path, data.vectors_path(CORPUS), data.vectors_path(TRAFFIC))
    return run.finish(
        lambda console: print_rows(console, rows),
        promises=promises_of(rows),
        results=rows,
        data=tuple(map(data_file, paths)),
    )


def measure(data: EvaluationData, seed: int) -> list[OrderRow]:
    """Returns a row for each stream and order."""
    natural, tokens = natural_stream(data, passages=PASSAGES), passage_tokens(data)
    rows: list[OrderRow] = []
    for stream in get_args(StreamName):
        asks = make_stream(stream, natural, asks=PROMPTS, seed=seed)
        prompts = [rendered(ask, tokens, SIZE.block_tokens) for ask in asks]
        found = {}
        for order, prefixes in ORDERS.items():
            found[order] = replay(prompts, SIZE, prefixes, backlog=BACKLOG)
        found["oracle"] = computed_once(prompts, SIZE.block_tokens)
        rows += (
            OrderRow(stream=stream, order=order, cached_share=each.cached_share)
            for order, each in found.items()
        )
    return rows


def promises_of(rows: Sequence[OrderRow]) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    return {
        f"{row.stream}: {OURS} finds {SHARE_MIN[row.stream]:.0%} or more": (
            row.cached_share >= SHARE_MIN[row.stream]
        )
        for row in rows
        if row.order == OURS
    }


def print_rows(console: Console, rows: Sequence[OrderRow]) -> None:
    """Prints what the paper states, and a column for each stream."""
    console.print(STATED)
    shares: dict[str, dict[str, float]] = {}
    for row in rows:
        shares.setdefault(row.stream, {})[row.order] = row.cached_share
    title = f"Cached share of the prompt tokens, with a backlog of {BACKLOG}"
    console.print(table_of(title, shares))
