"""The prefix cache of the LLM stand-in: blocks of tokens, of which none is ever removed."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK_TOKENS = 16


class PrefixCache:
    """The prefixes of prompts, in whole blocks."""

    def __init__(self) -> None:
        self._prefixes: set[tuple[int, ...]] = set()

    def take(self, ids: Sequence[int]) -> int:
        """Caches a prompt; returns how many of its tokens were cached before."""
        ends = range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS)
        prefixes = [tuple(ids[:end]) for end in ends]
        known = sum(each in self._prefixes for each in prefixes)
        self._prefixes.update(prefixes)
        # The last token is always computed: the answer begins after it.
        return min(known, max(0, len(ids) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
