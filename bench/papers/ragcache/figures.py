"""RAGCache's figures: orders of prompts (5.2), and what leaves host memory first (5.1)."""

from __future__ import annotations

from bench.core.machine import data_file
from bench.core.run import BenchRun
from bench.data.evaluation import CORPUS, TRAFFIC, find_data
from bench.papers.options import RagCacheOptions
from bench.papers.ragcache.orders import OURS, host_shares, order_shares
from bench.papers.ragcache.streams import (
    natural_stream,
    passage_tokens,
    ragpulse_stream,
    rendered,
    zipf_stream,
)
from bench.simulator.prompt_cache import CacheSize

STATED = (
    "Figure 18: with cache-aware reordering, its window 32, the average time to the first token is "
    "1.2 to 2.1 times lower, at request rates slightly above the throughput (section 7.3). Figure "
    "17: PGDSF hits 1.02 to 1.32, 1.06 to 1.62 and 1.06 to 1.75 times as often as GDSF, LRU and LFU"
)
PASSAGES = 3
BACKLOG = 1024
SIZE = CacheSize(blocks=728)
"""A vLLM with 1 GiB of KV cache for SmolLM2-135M."""
STREAMS = {
    "natural": lambda natural, seed: natural,
    "zipf": zipf_stream,
    "ragpulse": ragpulse_stream,
}
SHARE_MIN = {"natural": 0.14, "zipf": 0.65, "ragpulse": 0.2}
"""Promised of our order."""
ORDERS = f"with a backlog of {BACKLOG}"
HOSTS = {f"with {factor} times the GPU's memory on the host": factor for factor in (0, 1, 4)}


def run(options: RagCacheOptions) -> bool:
    """Runs the figures. Takes minutes."""
    run = BenchRun("ragcache", options)
    run.note(f"The paper: {STATED}")
    data = find_data(options.data)
    natural, tokens = natural_stream(data, passages=PASSAGES), passage_tokens(data)
    shares: dict[str, dict[str, dict[str, float]]] = {title: {} for title in (ORDERS, *HOSTS)}
    promises = {}
    for name, stream in STREAMS.items():
        run.note(name)
        prompts = [rendered(ask, tokens) for ask in stream(natural, options.seed)]
        ours = shares[ORDERS][name] = order_shares(prompts, SIZE, backlog=BACKLOG)
        least = SHARE_MIN[name]
        promises[f"{name}: {OURS} finds {least:.0%} or more"] = ours[OURS] >= least
        for title, factor in HOSTS.items():
            found = shares[title][name] = host_shares(prompts, SIZE, factor)
            if factor:
                promises[f"{name}, {title}: more than lru"] = found["pgdsf"] > found["lru"]
    paths = (data.corpus_path, data.vectors_path(CORPUS), data.vectors_path(TRAFFIC))
    return run.finish(
        {f"Cached share of the prompt tokens, {title}": found for title, found in shares.items()},
        promises=promises,
        results=shares,
        data=tuple(map(data_file, paths)),
    )
