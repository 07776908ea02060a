"""How much of each waiting prompt is cached, kept up to date with the knowledge tree. Pure.

A prompt may be sent in several ways, its *forms*: the same passages in other orders. Each has the
digests of its blocks. A change costs O(blocks of the prompts that have one of the changed blocks),
which are few; a question about a prompt costs one look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from generator.plan.kv_tree import BlockDigest, KvTree, KvTreeStep, digests_of


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptForm:
    """One way to send a prompt: the order of its passages, its length, and its blocks.

    `passages`: their ranks by score, from 0. `digests`: of the full blocks before the last token,
    because a server computes one token at least.
    """

    passages: tuple[int, ...]
    tokens: int
    digests: tuple[BlockDigest, ...]


def form_of(passages: tuple[int, ...], token_ids: Sequence[int], block_tokens: int) -> PromptForm:
    """Returns the form with these token ids, for servers with blocks of `block_tokens`."""
    digests = digests_of(token_ids[:-1], block_tokens=block_tokens)
    return PromptForm(passages=passages, tokens=len(token_ids), digests=digests)


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedForm:
    """The form of a prompt of which most is cached; if equal, the first.

    `cached_over_computed`: cached tokens divided by those that the server has to compute.
    """

    form: PromptForm
    cached_tokens: int
    cached_over_computed: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptStart:
    """The form that is cheapest to begin with, and its cost in tokens; see `CachedPrefix`."""

    form: PromptForm
    cost: float


class CachedPrefixes:
    """The waiting prompts whose blocks are known. See the module."""

    def __init__(self, tree: KvTree) -> None:
        self.tree = tree
        self._forms: dict[int, tuple[PromptForm, ...]] = {}
        self._cached: dict[int, CachedForm] = {}
        self._starts: dict[int, PromptStart] = {}  # costs that are up to date
        self._with_block: dict[BlockDigest, set[int]] = {}

    def __len__(self) -> int:
        return len(self._forms)

    def add(self, id: int, forms: Sequence[PromptForm]) -> None:
        """Adds a prompt. `forms`: at least one, the preferred first."""
        assert id not in self._forms, f"prompt {id} came twice"
        self._forms[id] = tuple(forms)
        for digest in _blocks(forms):
            self._with_block.setdefault(digest, set()).add(id)
        self._forget_starts(forms)
        self._cached[id] = self._find_cached(id)

    def remove(self, id: int) -> None:
        """Removes a prompt, if it is known."""
        forms = self._forms.pop(id, None)
        if forms is None:
            return
        self._forget_starts(forms)
        self._starts.pop(id, None)
        del self._cached[id]
        for digest in _blocks(forms):
            sharing = self._with_block[digest]
            sharing.remove(id)
            if not sharing:
                del self._with_block[digest]

    def changed(self, step: KvTreeStep) -> None:
        """Follows a step of the tree."""
        ids = set(self._forms) if step.is_emptied else set[int]()
        for digest in step.changed:
            ids |= self._with_block.get(digest, set())
        for id in ids:
            self._cached[id] = self._find_cached(id)
            self._starts.pop(id, None)

    def cached(self, id: int) -> CachedForm | None:
        """Returns the form of a prompt of which most is cached; None if its blocks are unknown."""
        return self._cached.get(id)

    def start(self, id: int) -> PromptStart | None:
        """Returns the cheapest form to begin a prompt with; None if its blocks are unknown."""
        start = self._starts.get(id)
        if start is None and id in self._forms:
            start = self._starts[id] = self._find_start(id)
        return start

    def check_integrity(self) -> None:
        """Asserts that the books agree with the tree."""
        assert self._cached == {id: self._find_cached(id) for id in self._forms}
        assert self._starts == {id: self._find_start(id) for id in self._starts}
        with_block: dict[BlockDigest, set[int]] = {}
        for id, forms in self._forms.items():
            for digest in _blocks(forms):
                with_block.setdefault(digest, set()).add(id)
        assert self._with_block == with_block

    def _find_cached(self, id: int) -> CachedForm:
        found = [(self.tree.cached_tokens(form.digests), form) for form in self._forms[id]]
        cached, form = max(found, key=lambda pair: pair[0])
        return CachedForm(
            form=form, cached_tokens=cached, cached_over_computed=cached / (form.tokens - cached)
        )

    def _find_start(self, id: int) -> PromptStart:
        starts = [PromptStart(form=form, cost=self._cost(form)) for form in self._forms[id]]
        return min(starts, key=lambda start: start.cost)

    def _cost(self, form: PromptForm) -> float:
        cached_blocks = self.tree.cached_blocks(form.digests)
        computed = form.tokens - cached_blocks * self.tree.block_tokens
        others = 0
        for digest in form.digests[cached_blocks:]:
            sharing = len(self._with_block[digest])
            if sharing == 1:
                break
            others += sharing - 1
        # The tokens to compute, divided by the prompts that use them: this one, and others by
        # the share of the tokens that they have too.
        return computed / (1 + others * self.tree.block_tokens / computed)

    def _forget_starts(self, forms: Sequence[PromptForm]) -> None:
        """Forgets the costs of prompts that share an uncached block with this prompt."""
        for digest in _blocks(forms):
            if digest not in self.tree:
                for id in self._with_block[digest]:
                    self._starts.pop(id, None)


def _blocks(forms: Sequence[PromptForm]) -> set[BlockDigest]:
    return {digest for form in forms for digest in form.digests}
