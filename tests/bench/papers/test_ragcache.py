"""RAGCache's order of prompts, the streams that it is compared on, and the promises."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.data.evaluation import find_data
from bench.papers.ragcache.orders import CacheAware, host_shares
from bench.papers.ragcache.streams import (
    RECENT_ASKS,
    RECENT_SHARE,
    REPEATED_SHARE,
    Ask,
    natural_stream,
    passage_tokens,
    ragpulse_stream,
    rendered,
    zipf_stream,
)
from bench.simulator.prompt_cache import CacheSize, computed_once
from generator.plan.kv_tree import KvTree
from tests.generator.test_order import seeing_tree, takes_the_largest_ratio


def test_cache_aware_takes_the_largest_ratio_of_cached_to_computed_tokens() -> None:
    takes_the_largest_ratio(CacheAware)


def test_cache_aware_gives_the_order_of_arrival_while_nothing_is_known() -> None:
    assert CacheAware(seeing_tree()).choose([4, 5]) == 4
    assert CacheAware(KvTree()).choose([4, 5]) == 4


def test_popular_questions_repeat_by_zipf() -> None:
    natural = [Ask(n, (3 * n, 3 * n + 1, 3 * n + 2)) for n in range(2_000)]
    zipf = zipf_stream(natural, 0)
    assert zipf == zipf_stream(natural, 0) != zipf_stream(natural, 1)
    assert max(Counter(zipf).values()) > 150, "the most popular: one of 8.2"


def test_prompts_are_equal_as_far_as_their_passages_are() -> None:
    asks = (Ask(question=0, passages=(1, 2)), Ask(question=1, passages=(1, 0)))
    one, other = (rendered(ask, [50, 64, 64]) for ask in asks)
    assert (len(one), len(other)) == (56 + 128 + 40, 56 + 114 + 40)
    assert one[:120] == other[:120]
    assert not set(one[120:]) & set(other[120:])


def test_passages_repeat_in_the_shape_of_ragpulse() -> None:
    natural = [Ask(n, (3 * n, 3 * n + 1, 3 * n + 2)) for n in range(2_000)]
    stream = ragpulse_stream(natural, 0)
    assert stream == ragpulse_stream(natural, 0) != ragpulse_stream(natural, 1)
    lists = [ask.passages for ask in stream]
    assert all(len(set(each)) == 3 for each in lists)
    recent = repeated = 0
    for at, passages in enumerate(lists):
        before = lists[max(0, at - RECENT_ASKS) : at]
        recent += len({one for each in before for one in each} & set(passages))
        repeated += passages in before
    assert recent / (3 * len(lists)) == pytest.approx(RECENT_SHARE, abs=0.02)
    assert repeated / len(lists) == pytest.approx(REPEATED_SHARE, abs=0.02)


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.data
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pgdsf_finds_more_of_real_prompts_than_lru_and_less_than_the_oracle() -> None:
    data = find_data(None)
    natural, tokens = natural_stream(data, passages=3), passage_tokens(data)
    prompts = [rendered(ask, tokens) for ask in zipf_stream(natural, 0)[:500]]
    size = CacheSize(blocks=200)
    (none,) = host_shares(prompts, size, 0).values()
    found = host_shares(prompts, size, 1)
    assert none < found["lru"] < found["pgdsf"] < found["oracle"]
    assert found["oracle"] < computed_once(prompts, size.block_tokens).cached_share
