"""Orders that do not know the cache, for comparison, and a bound that no order surpasses. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from bench.generation.block_simulator import BlockSimulator, CacheSize
from bench.generation.simulation import CachedShare, Renderer, SentPrompt
from bench.generation.streams import Ask
from generator.plan.kv_tree import BlockDigest
from generator.plan.order.cached_prefixes import PromptForm

Places = tuple[int, ...]
"""The order of an ask's passages, as their ranks by score."""


def by_shared_passages(asks: Sequence[Ask], *, backlog: int) -> Iterator[Ask]:
    """Yields asks sorted by what they share: next is the one most like the one before.

    Of `backlog` asks that wait it is the one with most passages of the one sent last; of equal ones
    the one that came first.
    """
    waiting: dict[int, Ask] = {}
    with_passage: dict[int, set[int]] = {}
    arriving = enumerate(asks)
    last = Ask(question="", passages=(), scores=())
    while True:
        for id, ask in islice(arriving, backlog - len(waiting)):
            waiting[id] = ask
            for passage in ask.passages:
                with_passage.setdefault(passage, set()).add(id)
        if not waiting:
            return
        shared = Counter(id for one in last.passages for id in with_passage.get(one, ()))
        first = next(iter(waiting))
        id = min(shared, key=lambda id: (-shared[id], id), default=first)
        last = waiting.pop(id)
        for passage in last.passages:
            with_passage[passage].remove(id)
        yield last


@dataclass(slots=True)
class _IndexNode:
    """A passage after others in earlier prompts, and how many prompts had it there."""

    prompts: int = 0
    children: dict[int, _IndexNode] = field(default_factory=dict)


class ContextIndex:
    """ContextPilot's alignment: the passages of a prompt in an order that earlier prompts had.

    From the beginning on, the next passage is one that followed in earlier prompts, the one that
    most of them had; where none followed, the rest stands in the order of scores. It forgets
    nothing, so it does not know what is still cached. (ContextPilot, MLSys 2026, arXiv 2511.03475:
    reordering in a context and scheduling of contexts. Its index is a hierarchical clustering; its
    notes to the model about the order of scores, which are tokens too, are left out here.)
    """

    def __init__(self) -> None:
        self._root = _IndexNode()

    def align(self, passages: Sequence[int]) -> tuple[Places, int]:
        """Returns the order of a prompt's passages, and how many followed an earlier prompt."""
        node, left, placed = self._root, list(range(len(passages))), []
        while known := [place for place in left if passages[place] in node.children]:
            place = max(known, key=lambda place: (node.children[passages[place]].prompts, -place))
            node = node.children[passages[place]]
            placed.append(place)
            left.remove(place)
        places = (*placed, *left)
        self._add([passages[place] for place in places])
        return places, len(placed)

    def _add(self, passages: Sequence[int]) -> None:
        node = self._root
        for passage in passages:
            node = node.children.setdefault(passage, _IndexNode())
            node.prompts += 1


def context_pilot(asks: Sequence[Ask], *, backlog: int) -> Iterator[tuple[Ask, Places]]:
    """Yields asks as ContextPilot orders batches of `backlog`, each with the order of its passages.

    Passages are aligned in the order in which asks come. Asks of a batch that begin with the same
    passage are sent one after the other, first the ask that shares most with an earlier prompt.
    `backlog` 1: alignment alone.
    """
    index, arriving = ContextIndex(), iter(asks)
    while batch := list(islice(arriving, backlog)):
        groups: dict[int, list[tuple[int, Ask, Places]]] = {}
        for ask in batch:
            places, followed = index.align(ask.passages)
            groups.setdefault(ask.passages[places[0]], []).append((followed, ask, places))
        for group in groups.values():
            for _, ask, places in sorted(group, key=lambda each: -each[0]):
                yield ask, places


def send(
    prompts: Iterable[tuple[Ask, Places]], size: CacheSize, renderer: Renderer
) -> Iterator[SentPrompt]:
    """Yields prompts that are sent in this order, each with what the simulation found cached."""
    server = BlockSimulator(size)
    for ask, places in prompts:
        token_ids = renderer.token_ids(ask, places)
        found = server.start(token_ids)
        yield SentPrompt(token_ids=token_ids, cached_tokens=found.cached)


def computed_once(
    asks: Sequence[Ask], score_loss_max: float | None, renderer: Renderer
) -> CachedShare:
    """Returns what no order of the asks can surpass, because it computes no block twice.

    It knows all asks in advance, and its memory has no bound. Where passages may be reordered, it
    computes no block that two different prompts have in any of their forms; no real order can reach
    that.
    """
    forms = {ask: renderer.forms(ask, score_loss_max) for ask in asks}
    having = Counter(block for each in forms.values() for block in _blocks(each))
    blocks = sum(
        min(sum(having[block] == 1 for block in form.digests) for form in each)
        for each in forms.values()
    )
    if score_loss_max is None:
        blocks = len(having)
    # What follows the last full block is computed for each prompt, also for an equal one.
    rest = {
        ask: min(form.tokens - renderer.block_tokens * len(form.digests) for form in each)
        for ask, each in forms.items()
    }
    computed = renderer.block_tokens * blocks + sum(rest[ask] for ask in asks)
    tokens = sum(forms[ask][0].tokens for ask in asks)
    return CachedShare(prompts=len(asks), cached_tokens=tokens - computed, computed_tokens=computed)


def _blocks(forms: Iterable[PromptForm]) -> set[BlockDigest]:
    return {block for form in forms for block in form.digests}
