"""The prefix cache of the LLM stand-in: what counts as cached, and what it says of its blocks."""

from __future__ import annotations

from pathlib import Path

import zmq

from carpool.testing.prefix_cache import BLOCK_TOKENS, PrefixCache
from generator.llm.kv_events import events_of
from generator.plan.kv_tree import KvBatch, KvTree, digests_of

POLL_MS = 100


def test_a_prompt_finds_the_full_blocks_that_it_begins_with_but_computes_its_last_token() -> None:
    ids = list(range(3 * BLOCK_TOKENS))
    with PrefixCache() as cache:
        assert cache.take(ids) == 0
        assert cache.take(ids) == 2 * BLOCK_TOKENS
        assert cache.take([*ids, 1]) == 3 * BLOCK_TOKENS
        assert cache.take(ids[: BLOCK_TOKENS + 1]) == BLOCK_TOKENS
        assert cache.take([7, *ids]) == cache.take([]) == 0


def test_it_says_each_block_once_so_that_a_tree_knows_them_all(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv"
    first, longer = list(range(40)), list(range(80))
    tree = KvTree()
    with zmq.Context() as context, context.socket(zmq.SUB) as socket, PrefixCache(endpoint) as one:
        socket.connect(endpoint)
        socket.subscribe("")
        assert one._publisher is not None
        while not one._publisher.has_subscriber():
            socket.poll(POLL_MS)
        for ids in (first, longer, first):
            one.take(ids)
        for seq in range(2):
            tree.step(KvBatch(seq=seq, events=events_of(socket.recv_multipart()[-1])))
        assert not socket.poll(POLL_MS), "the last prompt stored nothing"
    digests = digests_of(longer, block_tokens=BLOCK_TOKENS)
    assert (tree.block_tokens, len(tree)) == (BLOCK_TOKENS, 5)
    assert tree.cached_blocks(digests) == 5
