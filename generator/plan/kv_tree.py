"""What a server has cached, by its KV events. Pure.

A server keeps the keys and values of full blocks of tokens. Here a block is named by a digest of
all tokens from the beginning of the prompt to the block's end. So a set of digests is a tree: the
parent of a block is the block before it, and a prefix is cached as far as its digests are in the
set. The events use the server's own names of blocks; the tree translates them to digests.

A server with a second memory on the host takes the beginning of a prompt from the GPU, and goes on
in the host's memory from the first block that the GPU lacks. What the GPU has behind that block
does not count.

Batches of events are numbered from 0. Where numbers are missing, the tree asks for a replay, and
holds later batches until it ends. If the replay lacks a number, the tree is emptied: a removal may
have been missed. A number that jumps back means that the server was started anew, so it is emptied
too. After that it is *blind* until it hears of a block from the beginning of a prompt. (A vLLM says
so of blocks that it has cached already if the request asks for it.) What a tree says is cached was
cached when the last event was sent; it may know less than all.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NewType, TypeAlias

BlockDigest = NewType("BlockDigest", bytes)
"""Names the tokens from the beginning of a prompt to the end of one of its blocks."""
ServerBlockName: TypeAlias = bytes | int
"""How the server names a block in its events."""

HELD_BATCHES_MAX = 10_000
"""Batches that wait for a replay; with more the replay counts as failed."""
BLOCKS_MAX = 4_000_000
"""Blocks of one server, about 300 bytes each; with more the tree is emptied."""
DIGEST_BYTES = 16
KvCount = Literal["replayed", "emptied", "agreed", "more", "less"]
"""Replays that were asked for; how often a tree was emptied because events were lost or the server
was restarted; and answers by their cached tokens: as many as expected, more, and fewer."""


def digests_of(
    token_ids: Sequence[int], *, block_tokens: int, parent: BlockDigest | None = None
) -> tuple[BlockDigest, ...]:
    """Returns the digests of the full blocks of tokens that follow `parent`."""
    packed = memoryview(array("q", token_ids).tobytes())
    block_bytes = 8 * block_tokens
    digest, digests = parent or b"", []
    for end in range(block_bytes, len(packed) + 1, block_bytes):
        block = hashlib.blake2b(digest, digest_size=DIGEST_BYTES)
        block.update(packed[end - block_bytes : end])
        digest = BlockDigest(block.digest())
        digests.append(digest)
    return tuple(digests)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlocksStored:
    """Blocks are cached that follow `parent` (None: the beginning), with their `token_ids`.

    `is_on_host`: in the host's memory, else on the GPU.
    """

    names: tuple[ServerBlockName, ...]
    parent: ServerBlockName | None
    token_ids: Sequence[int]
    is_on_host: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BlocksRemoved:
    """Blocks are no longer cached in one of the memories."""

    names: tuple[ServerBlockName, ...]
    is_on_host: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BlocksCleared:
    """Nothing is cached any more."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | BlocksCleared


@dataclass(frozen=True, kw_only=True, slots=True)
class KvBatch:
    """Events with their number. `is_replayed`: sent again because the tree had asked."""

    seq: int
    events: tuple[KvEvent, ...]
    is_replayed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayEnded:
    """No more batches are replayed: all were, or the server could not be asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLost:
    """The server cannot be reached, or was started anew: what it has cached is not known."""


KvTreeEvent: TypeAlias = KvBatch | ReplayEnded | ServerLost


@dataclass(frozen=True, kw_only=True, slots=True)
class KvTreeStep:
    """What a step did: digests whose state may have changed, and what the caller has to do.

    `is_emptied`: the state of all digests may have changed. `replay_from`: ask the server for all
    batches from this number on, pass them to the tree, then `ReplayEnded`.
    """

    changed: frozenset[BlockDigest] = frozenset()
    is_emptied: bool = False
    replay_from: int | None = None


class KvTree:
    """See the module. Not thread-safe. A step costs O(blocks of its events)."""

    def __init__(self) -> None:
        self.block_tokens = 0
        """Tokens of a block of the server, as its events say; 0: not known yet."""
        self.is_blind = True
        """What is cached is unknown. An empty tree that is not blind: nothing is cached."""
        self.counts: Counter[KvCount] = Counter()
        # Of the blocks on the GPU, and of those on the host: [is_on_host].
        self._digest_of: tuple[dict[ServerBlockName, BlockDigest], ...] = ({}, {})
        self._name_of: tuple[dict[BlockDigest, ServerBlockName], ...] = ({}, {})
        self._next_seq = 0
        self._last_live_seq = -1
        self._held: dict[int, KvBatch] = {}
        self._is_replaying = False
        self._changed: set[BlockDigest] = set()  # in this step
        self._is_emptied = False

    def __len__(self) -> int:
        """Returns the number of blocks that are known to be cached; copies count."""
        return sum(map(len, self._name_of))

    def __contains__(self, digest: BlockDigest) -> bool:
        return any(digest in name_of for name_of in self._name_of)

    def cached_blocks(self, digests: Sequence[BlockDigest]) -> int:
        """Returns how many blocks at the beginning of a prompt are cached."""
        blocks = 0
        for name_of in self._name_of:
            while blocks < len(digests) and digests[blocks] in name_of:
                blocks += 1
        return blocks

    def cached_tokens(self, digests: Sequence[BlockDigest]) -> int:
        """Returns how many tokens at the beginning of a prompt are cached."""
        return self.cached_blocks(digests) * self.block_tokens

    def cached_of(self, token_ids: Sequence[int]) -> int:
        """Returns how many of these tokens at the beginning of a prompt are cached."""
        size = self.block_tokens
        return self.cached_tokens(digests_of(token_ids, block_tokens=size)) if size else 0

    def check(self, expected_tokens: int, reported_tokens: int) -> None:
        """Compares the expected cached tokens with those of the answer."""
        is_more = reported_tokens > expected_tokens
        what: KvCount = "more" if is_more else "less"
        self.counts["agreed" if reported_tokens == expected_tokens else what] += 1

    def step(self, event: KvTreeEvent) -> KvTreeStep:
        """Takes an event. Names of blocks that are not known are ignored."""
        self._changed, self._is_emptied, replay_from = set(), False, None
        match event:
            case ServerLost():
                self._begin_anew()
            case ReplayEnded():
                if self._is_replaying:
                    self._end_replay()
            case KvBatch(is_replayed=True):
                if self._is_replaying and event.seq == self._next_seq:
                    self._apply(event)
            case KvBatch():
                replay_from = self._take_live(event)
        return KvTreeStep(
            changed=frozenset(self._changed),
            is_emptied=self._is_emptied,
            replay_from=replay_from,
        )

    def check_integrity(self) -> None:
        """Asserts what must be true between two steps."""
        for digest_of, name_of in zip(self._digest_of, self._name_of, strict=True):
            assert {digest: name for name, digest in digest_of.items()} == name_of
        assert self._is_replaying or not self._held, "batches wait for no replay"
        assert all(seq <= self._last_live_seq for seq in self._held), "a batch that never came"
        assert not (self.is_blind and len(self)), "a blind tree knows blocks"

    def _take_live(self, batch: KvBatch) -> int | None:
        if batch.seq <= self._last_live_seq:  # the server was started anew
            self._begin_anew()
        self._last_live_seq = batch.seq
        if batch.seq < self._next_seq:
            return None  # it was replayed before it came
        if batch.seq == self._next_seq and not self._is_replaying:
            self._apply(batch)
            return None
        self._held[batch.seq] = batch
        if len(self._held) > HELD_BATCHES_MAX:
            self._end_replay()
        elif not self._is_replaying:
            self._is_replaying = True
            self.counts["replayed"] += 1
            return self._next_seq
        return None

    def _end_replay(self) -> None:
        """Applies the batches that waited; empties the tree if one before them is missing."""
        self._is_replaying = False
        held, self._held = sorted(self._held.items()), {}
        for seq, batch in held:
            if seq > self._next_seq:
                self._lose()
                self._next_seq = seq
            if seq == self._next_seq:
                self._apply(batch)

    def _begin_anew(self) -> None:
        self._held.clear()
        self._is_replaying = False
        self._lose()
        self._next_seq, self._last_live_seq = 0, -1

    def _lose(self) -> None:
        self.counts["emptied"] += 1
        self._empty()
        self.is_blind = True
        self.block_tokens = 0

    def _empty(self) -> None:
        for digest_of, name_of in zip(self._digest_of, self._name_of, strict=True):
            digest_of.clear()
            name_of.clear()
        self._is_emptied = True

    def _apply(self, batch: KvBatch) -> None:
        self._next_seq = batch.seq + 1
        if batch.seq == 0:
            self.is_blind = False  # a server begins with nothing
        stored: list[BlocksStored] = []
        for event in batch.events:
            if isinstance(event, BlocksStored):
                stored.append(event)
                continue
            self._store_all(stored)
            stored = []
            match event:
                case BlocksRemoved(names=names):
                    for name in names:
                        self._remove(name, event.is_on_host)
                case BlocksCleared():
                    self._empty()
                    self.is_blind = False
        self._store_all(stored)

    def _store_all(self, stored: list[BlocksStored]) -> None:
        """Stores blocks whose parents may come after them: on the host they have no order."""
        while waiting := [one for one in stored if not self._store(one)]:
            if len(waiting) == len(stored):
                return  # the blocks before these are not known
            stored = waiting

    def _store(self, stored: BlocksStored) -> bool:
        """Returns whether the block before these is known."""
        known = [each[stored.parent] for each in self._digest_of if stored.parent in each]
        if stored.parent is not None and not known:
            return False
        parent = known[0] if known else None
        if self.block_tokens == 0 and stored.names:
            self.block_tokens = len(stored.token_ids) // len(stored.names)
        if not stored.names or len(stored.token_ids) != len(stored.names) * self.block_tokens:
            return True  # blocks of another size
        if len(self) + len(stored.names) > BLOCKS_MAX:
            self._lose()
            return True
        digests = digests_of(stored.token_ids, block_tokens=self.block_tokens, parent=parent)
        self.is_blind = False
        digest_of, name_of = self._digest_of[stored.is_on_host], self._name_of[stored.is_on_host]
        for name, digest in zip(stored.names, digests, strict=True):
            self._remove(name, stored.is_on_host)
            if (other := name_of.get(digest)) is not None:
                self._remove(other, stored.is_on_host)
            digest_of[name] = digest
            name_of[digest] = name
            self._changed.add(digest)
        return True

    def _remove(self, name: ServerBlockName, is_on_host: bool) -> None:
        digest = self._digest_of[is_on_host].pop(name, None)
        if digest is not None:
            del self._name_of[is_on_host][digest]
            self._changed.add(digest)
