"""How many prompt tokens does an order save? RAGCache's order (5.2), ours, arrival, an oracle."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.machine import data_file
from bench.core.run import BenchRun
from bench.data.evaluation import CORPUS, TRAFFIC, find_data
from bench.papers.options import RagCacheOptions
from bench.papers.ragcache.streams import natural_stream, passage_tokens, rendered, zipf_stream
from bench.simulator.prompt_cache import CacheSize, computed_once, replay
from generator.plan.cached_prefixes import CachedPrefixes

STATED = (
    "Figure 18: with cache-aware reordering, its window 32, the average time to the first token is "
    "1.2 to 2.1 times lower, at request rates slightly above the throughput (section 7.3)"
)
PASSAGES = 3
BACKLOG = 1024
SIZE = CacheSize(blocks=727)
"""A vLLM with 1 GiB of KV cache for SmolLM2-135M: 728 blocks, of which it keeps one for itself."""
OURS = "cached_prefix"
SHARE_MIN = {"natural": 0.14, "zipf": 0.65}
"""Promised of ours."""


class CacheAware(CachedPrefixes):
    """Chooses the prompt with most cached tokens for each token to compute.

    The paper's window, within which each request is processed, is the queue's: every 16th prompt is
    the oldest. The order ranks prompts of which nothing is cached as equal: ours does better with a
    large backlog.
    """

    def choose(self, ids: Sequence[int]) -> int:
        """If equal, and while no blocks are known, it is the first. O(prompts)."""
        # OrderPriority = Cached Length / Computation Length
        return max(ids, key=lambda id: self.cached_over_computed(id) or 0.0)


class Arrival(CachedPrefixes):
    """Chooses the prompt that came first."""

    def choose(self, ids: Sequence[int]) -> int:
        """Returns the first."""
        return ids[0]


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
    run.note(f"The paper: {STATED}")
    data = find_data(options.data)
    natural, tokens = natural_stream(data, passages=PASSAGES), passage_tokens(data)
    shares: dict[str, dict[str, float]] = {}
    for name, asks in ("natural", natural), ("zipf", zipf_stream(natural, options.seed)):
        prompts = [rendered(ask, tokens) for ask in asks]
        found = {
            order: replay(prompts, SIZE, prefixes, backlog=BACKLOG)
            for order, prefixes in ORDERS.items()
        }
        found["oracle"] = computed_once(prompts, SIZE.block_tokens)
        shares[name] = {order: each.cached_share for order, each in found.items()}

    paths = (data.corpus_path, data.vectors_path(CORPUS), data.vectors_path(TRAFFIC))
    return run.finish(
        {f"Cached share of the prompt tokens, with a backlog of {BACKLOG}": shares},
        promises={
            f"{name}: {OURS} finds {share_min:.0%} or more": shares[name][OURS] >= share_min
            for name, share_min in SHARE_MIN.items()
        },
        results=shares,
        data=tuple(map(data_file, paths)),
    )
