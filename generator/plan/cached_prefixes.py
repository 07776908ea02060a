"""How much of each waiting prompt a server has cached, and which prompt is next by that. Pure.

The books are kept up to date with the knowledge tree: a change costs O(blocks of the prompts that
have one of the changed blocks), which are few; a question about a prompt costs one look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from generator.plan.kv_tree import BlockDigest, KvTree, KvTreeStep, digests_of


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptBlocks:
    """The length of a prompt, and the digests of its full blocks before the last token.

    Without the last token, because a server computes one token at least.
    """

    tokens: int
    digests: tuple[BlockDigest, ...]


def blocks_of(token_ids: Sequence[int], block_tokens: int) -> PromptBlocks:
    """Returns the blocks of a prompt, for a server with blocks of `block_tokens`; 0: not known."""
    digests = digests_of(token_ids[:-1], block_tokens=block_tokens) if block_tokens else ()
    return PromptBlocks(tokens=len(token_ids), digests=digests)


class CachedPrefixes:
    """The waiting prompts whose tokens are known, at one server. See the module."""

    def __init__(self, tree: KvTree) -> None:
        self.tree = tree
        self._block_tokens = tree.block_tokens
        self._token_ids: dict[int, Sequence[int]] = {}
        self._blocks: dict[int, PromptBlocks] = {}
        self._cached_tokens: dict[int, int] = {}
        self._costs: dict[int, float] = {}  # those that are up to date
        self._with_block: dict[BlockDigest, set[int]] = {}

    def add(self, id: int, token_ids: Sequence[int]) -> None:
        """Adds a prompt."""
        assert id not in self._blocks, f"prompt {id} came twice"
        self._token_ids[id] = token_ids
        blocks = self._blocks[id] = blocks_of(token_ids, self._block_tokens)
        for digest in blocks.digests:
            self._with_block.setdefault(digest, set()).add(id)
        self._forget_costs(blocks)
        self._cached_tokens[id] = self.tree.cached_tokens(blocks.digests)

    def remove(self, id: int) -> None:
        """Removes a prompt, if it is known."""
        blocks = self._blocks.pop(id, None)
        if blocks is None:
            return
        self._forget_costs(blocks)
        self._costs.pop(id, None)
        del self._cached_tokens[id], self._token_ids[id]
        for digest in blocks.digests:
            sharing = self._with_block[digest]
            sharing.remove(id)
            if not sharing:
                del self._with_block[digest]

    def changed(self, step: KvTreeStep) -> None:
        """Follows a step of the tree. If it has blocks of another size, prompts are cut anew."""
        if self._block_tokens != self.tree.block_tokens:
            self._block_tokens = self.tree.block_tokens
            for id, token_ids in tuple(self._token_ids.items()):
                self.remove(id)
                self.add(id, token_ids)
            return
        ids = set(self._blocks) if step.is_emptied else set[int]()
        for digest in step.changed:
            ids |= self._with_block.get(digest, set())
        for id in ids:
            self._cached_tokens[id] = self.tree.cached_tokens(self._blocks[id].digests)
            self._costs.pop(id, None)

    def cached_tokens(self, id: int) -> int | None:
        """Returns how many tokens of a prompt are cached; None if that is not known."""
        return None if self.tree.is_blind else self._cached_tokens.get(id)

    def cached_over_computed(self, id: int) -> float | None:
        """Returns the cached tokens of a prompt over those to compute; None: not known."""
        cached = self.cached_tokens(id)
        return None if cached is None else cached / (self._blocks[id].tokens - cached)

    def choose(self, ids: Sequence[int]) -> int:
        """Returns the next of `ids`, which are in the order of arrival: cached prefixes first, then
        those that many prompts share. While no blocks are known it is the first. O(prompts).

        While some prompts have more cached than others, the next prompt is RAGCache's: the one with
        the largest ratio of cached to computed tokens. Otherwise all prompts have to be computed
        from the same position on. Then the next prompt is the one with the least

            cost = computed tokens / prompts that use them

        where another waiting prompt counts by the share of these tokens that it has too. So a
        prefix of many prompts is computed once for all of them. A prompt that shares no prefix goes
        early if it is short: a long one may save more if a prompt with the same prefix arrives.
        """
        known = [(id, cached) for id in ids if (cached := self.cached_tokens(id)) is not None]
        if not known:
            return ids[0]
        best = max((id for id, _ in known), key=lambda id: self.cached_over_computed(id) or 0.0)
        if self._cached_tokens[best] > min(cached for _, cached in known):
            return best
        return min((id for id, _ in known), key=self._cost)

    def check_integrity(self) -> None:
        """Asserts that the books agree with the tree."""
        assert self._blocks == {
            id: blocks_of(token_ids, self.tree.block_tokens)
            for id, token_ids in self._token_ids.items()
        }
        assert self._cached_tokens == {
            id: self.tree.cached_tokens(blocks.digests) for id, blocks in self._blocks.items()
        }
        known, self._costs = self._costs, {}
        assert known == {id: self._cost(id) for id in known}
        with_block: dict[BlockDigest, set[int]] = {}
        for id, blocks in self._blocks.items():
            for digest in blocks.digests:
                with_block.setdefault(digest, set()).add(id)
        assert self._with_block == with_block

    def _cost(self, id: int) -> float:
        if id in self._costs:
            return self._costs[id]
        blocks, block_tokens = self._blocks[id], self.tree.block_tokens
        cached_blocks = self.tree.cached_blocks(blocks.digests)
        computed = blocks.tokens - cached_blocks * block_tokens
        others = 0
        for digest in blocks.digests[cached_blocks:]:
            sharing = len(self._with_block[digest])
            if sharing == 1:
                break
            others += sharing - 1
        # The tokens to compute, divided by the prompts that use them: this one, and others by
        # the share of the tokens that they have too.
        cost = self._costs[id] = computed / (1 + others * block_tokens / computed)
        return cost

    def _forget_costs(self, blocks: PromptBlocks) -> None:
        """Forgets the costs of prompts that share an uncached block with this prompt."""
        for digest in blocks.digests:
            if digest not in self.tree:
                for id in self._with_block[digest]:
                    self._costs.pop(id, None)
