"""How many prompt tokens does an order save? RAGCache's order (5.2), ours, arrival, an oracle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.command import reported
from bench.core.machine import data_file
from bench.core.progress import Tell, progress_bars
from bench.core.run import begin
from bench.data.evaluation import CORPUS, TRAFFIC, EvaluationData, find_data
from bench.papers.ragcache.cache_aware import Arrival, CacheAware
from bench.papers.ragcache.options import RagCacheOptions
from bench.papers.ragcache.prompts import Renderer
from bench.papers.ragcache.streams import StreamName, make_stream, natural_stream
from bench.simulator.prompt_cache import (
    CacheSize,
    computed_once,
    replay,
)
from carpool.vllm import VllmSettings
from generator.plan.cached_prefixes import CachedPrefixes

STATED = (
    "Figure 18: with cache-aware reordering, its window 32, the average time to the first token is "
    "1.2 to 2.1 times lower, at request rates slightly above the throughput (section 7.3)"
)
PASSAGES = 3
BACKLOG = 1024
SIZE = CacheSize(blocks=727)
"""A vLLM with 1 GiB of KV cache for SmolLM2-135M: 728 blocks, of which it keeps one for itself."""
SHARE_MIN: dict[StreamName, float] = {"natural": 0.14, "zipf": 0.65, "ragpulse": 0.20}
"""Promised of `cached_prefix`."""


class OrderRow(msgspec.Struct, frozen=True, kw_only=True):
    """An order of prompts in a stream, and what was cached."""

    stream: StreamName
    order: str
    cached_share: float
    computed_per_answer: float


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
    run = begin("ragcache orders", options)
    data = find_data(options.data)
    model_dir = Path(options.llm or VllmSettings().model_dir)
    with progress_bars() as tell:
        rows = asyncio.run(measure(data, model_dir, options.prompts, options.seed, tell))
    files = (data.corpus_path, data.questions_path(TRAFFIC))
    vectors = (data.vectors_path(CORPUS), data.vectors_path(TRAFFIC))
    return run.finish(
        lambda console: print_rows(console, rows),
        settings=reported(msgspec.structs.replace(options, llm=model_dir.name)),
        promises=promises_of(rows),
        results=rows,
        data=tuple(map(data_file, (*files, *vectors))),
    )


async def measure(
    data: EvaluationData, model_dir: Path, prompts: int, seed: int, tell: Tell
) -> list[OrderRow]:
    """Returns a row for each stream and order."""
    natural = natural_stream(data, passages=PASSAGES)
    renderer = Renderer(data, model_dir, block_tokens=SIZE.block_tokens)
    rows: list[OrderRow] = []
    for stream in get_args(StreamName):
        asks = make_stream(stream, natural, asks=prompts, seed=seed)
        rendered = [await renderer.render(ask) for ask in asks]
        found = {}
        for number, (order, prefixes) in enumerate(ORDERS.items(), 1):
            found[order] = replay(rendered, SIZE, prefixes, backlog=BACKLOG)
            tell(stream, number, len(ORDERS))
        found["oracle"] = computed_once(rendered, SIZE.block_tokens)
        rows += (
            OrderRow(
                stream=stream,
                order=order,
                cached_share=each.cached_share,
                computed_per_answer=each.computed / prompts,
            )
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
    """Prints what the paper states, and a line for each order."""
    console.print(STATED)
    title = f"Cached share of the prompt tokens; computed tokens an answer; a backlog of {BACKLOG}"
    table = Table("order", *get_args(StreamName), title=title)
    for order in (*ORDERS, "oracle"):
        some = (row for row in rows if row.order == order)
        cells = (f"{row.cached_share:.1%}; {row.computed_per_answer:.0f}" for row in some)
        table.add_row(order, *cells)
    console.print(table)
