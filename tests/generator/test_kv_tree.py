"""The knowledge tree: what a server has cached, by its numbered events."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.plan import kv_tree
from generator.plan.kv_tree import (
    BlockDigest,
    BlocksRemoved,
    BlocksStored,
    KvBatch,
    KvEvent,
    KvTree,
    ReplayEnded,
    digests_of,
)

BLOCK = 4
PROMPT = tuple(range(12))
DIGESTS = digests_of(PROMPT, block_tokens=BLOCK)
STORED = BlocksStored(names=(1, 2, 3), parent=None, token_ids=PROMPT)


def tree_with(*events: KvEvent) -> KvTree:
    tree = KvTree()
    tree.step(KvBatch(seq=0, events=events))
    tree.check_integrity()
    return tree


def test_a_digest_names_all_tokens_from_the_beginning() -> None:
    assert len(digests_of(PROMPT[:11], block_tokens=BLOCK)) == 2
    assert digests_of(PROMPT[:8], block_tokens=BLOCK) == DIGESTS[:2]
    other = digests_of((99, *PROMPT[1:]), block_tokens=BLOCK)
    assert not set(other) & set(DIGESTS)
    assert digests_of(PROMPT[8:], block_tokens=BLOCK, parent=DIGESTS[1]) == DIGESTS[2:]


def test_the_size_of_blocks_is_learned_of_the_events_and_anew_of_another_server() -> None:
    tree = KvTree()
    assert (tree.block_tokens, tree.cached_tokens(DIGESTS)) == (0, 0)
    tree.step(KvBatch(seq=0, events=(STORED,)))
    assert (tree.block_tokens, tree.cached_tokens(DIGESTS)) == (BLOCK, 12)
    other = BlocksStored(names=(7,), parent=None, token_ids=PROMPT[:8])
    tree.step(KvBatch(seq=1, events=(other,)))
    assert len(tree) == 3, "a server has one size"
    tree.step(KvBatch(seq=0, events=(other,)))  # numbers jump back: it was started anew
    assert (tree.block_tokens, len(tree)) == (8, 1)
    tree.check_integrity()


def test_a_server_that_never_removes_a_block_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_tree, "BLOCKS_MAX", 4)
    tree = tree_with(STORED)
    other = BlocksStored(names=(4, 5), parent=None, token_ids=(9,) * 8)
    tree.step(KvBatch(seq=1, events=(other,)))
    tree.check_integrity()
    assert (len(tree), tree.is_blind, tree.counts["emptied"]) == (0, True, 1)
    tree.step(KvBatch(seq=2, events=(other,)))
    assert (len(tree), tree.is_blind) == (2, False)


def test_a_gap_is_filled_by_a_replay_and_later_batches_wait_for_it() -> None:
    tree = tree_with(STORED)
    removed = KvBatch(seq=1, events=(BlocksRemoved(names=(3,)),))
    again = KvBatch(seq=2, events=(BlocksStored(names=(3,), parent=2, token_ids=PROMPT[8:]),))
    later = KvBatch(seq=3, events=(BlocksRemoved(names=(2,)),))
    assert tree.step(again).replay_from == 1
    assert tree.step(later).replay_from is None, "the replay was asked for already"
    assert tree.cached_tokens(DIGESTS) == 12, "what waits is not known yet"
    for batch in (KvBatch(seq=0, events=(STORED,)), removed, again):
        tree.step(KvBatch(seq=batch.seq, events=batch.events, is_replayed=True))
        tree.check_integrity()
    step = tree.step(ReplayEnded())
    assert not step.is_emptied
    assert tree.cached_tokens(DIGESTS) == 4
    assert (tree.counts["replayed"], tree.counts["emptied"], tree.is_blind) == (1, 0, False)


def test_a_replay_that_lacks_the_gap_empties_the_tree_until_a_prompt_is_stored_anew() -> None:
    tree = tree_with(STORED)
    tree.step(KvBatch(seq=5, events=(BlocksStored(names=(7,), parent=3, token_ids=(0,) * 4),)))
    step = tree.step(ReplayEnded())
    assert step.is_emptied
    assert tree.is_blind
    assert len(tree) == 0
    tree.step(KvBatch(seq=6, events=(BlocksStored(names=(8,), parent=7, token_ids=(1,) * 4),)))
    assert tree.is_blind, "what precedes the block is not known"
    tree.step(KvBatch(seq=7, events=(STORED,)))
    assert not tree.is_blind
    assert tree.cached_tokens(DIGESTS) == 12


def test_a_jump_back_is_a_server_that_was_started_anew() -> None:
    tree = tree_with(STORED)
    tree.step(KvBatch(seq=1, events=()))
    step = tree.step(KvBatch(seq=0, events=()))
    assert step.is_emptied
    assert not tree.is_blind, "a new server has nothing cached, and the tree knows all its events"
    assert tree.step(KvBatch(seq=1, events=(STORED,))).replay_from is None
    assert tree.cached_tokens(DIGESTS) == 12
    step = tree.step(KvBatch(seq=1, events=()))
    assert step.is_emptied
    assert step.replay_from == 0, "the first batch of the new server was missed"


def test_answers_are_counted_that_disagree() -> None:
    tree = tree_with(STORED)
    for expected, reported in ((12, 12), (12, 8), (8, 12), (8, 8)):
        tree.check(expected, reported)
    assert tree.counts == {"agreed": 2, "less": 1, "more": 1}


class Server:
    """A server with blocks on the GPU and on the host, which stores them in any order.

    Any block may leave when there are too many.
    """

    def __init__(self, gpu_blocks: int, host_blocks: int) -> None:
        self.sizes = (gpu_blocks, host_blocks)
        self.memories: tuple[list[BlockDigest], ...] = ([], [])
        self.events: list[KvEvent] = []
        self.random = random.Random(0)

    def cached(self, digests: Sequence[BlockDigest]) -> int:
        found = 0
        for memory in self.memories:
            while found < len(digests) and digests[found] in memory:
                found += 1
        return found

    def start(self, prompt: Sequence[int]) -> None:
        digests = digests_of(prompt, block_tokens=BLOCK)
        for is_on_host, memory in enumerate(self.memories):
            new = [place for place, digest in enumerate(digests) if digest not in memory]
            if is_on_host:
                self.random.shuffle(new)
            for place in new:
                memory.append(digests[place])
                event = BlocksStored(
                    names=(digests[place],),
                    parent=digests[place - 1] if place else None,
                    token_ids=prompt[place * BLOCK : (place + 1) * BLOCK],
                    is_on_host=bool(is_on_host),
                )
                self.events.append(event)
            while len(memory) > self.sizes[is_on_host]:
                gone = memory.pop(self.random.randrange(len(memory)))
                removed = BlocksRemoved(names=(gone,), is_on_host=bool(is_on_host))
                self.events.append(removed)

    def take_batch(self, seq: int) -> KvBatch:
        events, self.events = tuple(self.events), []
        return KvBatch(seq=seq, events=events)


@dataclass
class Line:
    """Batches between a simulated server and the tree: some are lost, and a replay is short."""

    tree: KvTree
    kept: list[KvBatch] = field(default_factory=list)
    replay_max: int = 5

    def send(self, batch: KvBatch, *, is_lost: bool) -> None:
        self.kept = [*self.kept, batch][-self.replay_max :]
        if is_lost:
            return
        step = self.tree.step(batch)
        self.tree.check_integrity()
        if step.replay_from is not None:
            for old in self.kept:
                if old.seq >= step.replay_from:
                    self.tree.step(KvBatch(seq=old.seq, events=old.events, is_replayed=True))
                    self.tree.check_integrity()
            self.tree.step(ReplayEnded())
            self.tree.check_integrity()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=60),
    st.integers(0, 59),
    st.sampled_from([(7, 11), (2, 11), (7, 3)]),
)
@settings(max_examples=300, deadline=None)
def test_a_tree_never_claims_more_than_the_server_has(
    sent: list[tuple[int, int, bool]], restart_at: int, blocks: tuple[int, int]
) -> None:
    server, line, seq = Server(*blocks), Line(KvTree()), 0
    for place, (first, second, is_lost) in enumerate(sent):
        if place == restart_at:
            server, seq, line.kept = Server(*blocks), 0, []
            line.tree.step(KvBatch(seq=0, events=()))  # a restart is noticed by its first batch
            seq = 1
        prompt = (7, 7, 7, 7, *(first,) * 6, *(second,) * 7)
        digests = digests_of(prompt, block_tokens=BLOCK)
        is_up_to_date = not line.tree._held and line.tree._next_seq == seq
        if is_up_to_date:
            claimed = line.tree.cached_blocks(digests)
            assert claimed <= server.cached(digests)
            assert claimed == server.cached(digests) or line.tree.counts["emptied"]
        server.start(prompt)
        line.send(server.take_batch(seq), is_lost=is_lost)
        seq += 1
