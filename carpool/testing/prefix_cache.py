"""The prefix cache of the LLM stand-in: blocks of tokens, of which none is ever removed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carpool.testing.kv_events import KvPublisher

BLOCK_TOKENS = 16


class PrefixCache:
    """A context manager. With an endpoint `kv_events` it says what it stores, as vLLM does."""

    def __init__(self, kv_events: str | None = None) -> None:
        self._kv_events = kv_events
        self._publisher: KvPublisher | None = None
        self._opened = ExitStack()
        self._prefixes: set[int] = set()  # of whole blocks, each by its hash

    def __enter__(self) -> PrefixCache:
        if self._kv_events is not None:
            from carpool.testing.kv_events import KvPublisher  # needs ZeroMQ

            publisher = KvPublisher(endpoint=self._kv_events, block_tokens=BLOCK_TOKENS)
            self._publisher = self._opened.enter_context(publisher)
        return self

    def __exit__(self, *_: object) -> None:
        self._publisher = None
        self._opened.close()

    def take(self, ids: Sequence[int]) -> int:
        """Caches a prompt; returns how many of its tokens were cached before."""
        ends = range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS)
        blocks = (hash(tuple(ids[end - BLOCK_TOKENS : end])) for end in ends)
        prefixes = list(accumulate(blocks, lambda before, block: hash((before, block))))
        known = sum(each in self._prefixes for each in prefixes)
        if self._publisher is not None and known < len(prefixes):
            self._publisher.publish(self._publisher.store(ids, first=known))
        self._prefixes.update(prefixes)
        # The last token is always computed: the answer begins after it.
        return min(known, max(0, len(ids) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
