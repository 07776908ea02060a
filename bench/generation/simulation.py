"""One stream of prompts through the generator's queue and the simulated cache of one server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from bench.generation.block_simulator import BlockSimulator, CacheSize
from bench.generation.streams import Ask, PromptIds
from bench.papers.ragcache.cache_aware import CacheAware
from generator.plan.kv_tree import KvTree
from generator.plan.order.cached_prefixes import CachedPrefixes, PromptForm, form_of
from generator.plan.order.factory import OrderName, make_order
from generator.plan.order.passage_orders import passage_orders
from generator.plan.queue import Prompt, PromptQueue, QueuedPrompt, ServerCache
from generator.prompts import PASSAGE_ORDERS_MAX


class OrderCase(msgspec.Struct, frozen=True, kw_only=True):
    """An order and its bounds. `backlog`: prompts that wait. `overtaken_max` None: no bound.

    `score_loss_max`: how much higher the score of a passage may be than that of one before it; None
    keeps passages in the order of their scores.
    """

    order: OrderName | Literal["cache_aware"]
    backlog: int
    overtaken_max: int | None = None
    score_loss_max: float | None = None


class CachedShare(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens of a run that were cached, and those that were computed."""

    prompts: int
    cached_tokens: int
    computed_tokens: int

    @property
    def share(self) -> float:
        """The share of the prompt tokens that were cached."""
        return self.cached_tokens / (self.cached_tokens + self.computed_tokens)


class SentPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it was sent, with the tokens that the simulation found cached."""

    token_ids: tuple[int, ...]
    cached_tokens: int


class Renderer:
    """Renders the forms of each ask once, whatever streams and orders it is in."""

    def __init__(self, prompt_ids: PromptIds, *, block_tokens: int) -> None:
        self._prompt_ids = prompt_ids
        self.block_tokens = block_tokens
        self._known: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self._forms: dict[tuple[str, tuple[int, ...], tuple[int, ...]], PromptForm] = {}

    def token_ids(self, ask: Ask, places: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the ids of the prompt with the passages in this order of places."""
        passages = tuple(ask.passages[place] for place in places)
        key = (ask.question, passages)
        if key not in self._known:
            self._known[key] = self._prompt_ids.render(ask.question, passages)
        return self._known[key]

    def forms(self, ask: Ask, score_loss_max: float | None) -> tuple[PromptForm, ...]:
        """Returns the forms in which the prompt may be sent."""
        orders = (
            (by_score(ask),)
            if score_loss_max is None
            else passage_orders(
                ask.scores, score_loss_max=score_loss_max, orders_max=PASSAGE_ORDERS_MAX
            )
        )
        return tuple(self._form(ask, places) for places in orders)

    def _form(self, ask: Ask, places: tuple[int, ...]) -> PromptForm:
        key = (ask.question, ask.passages, places)
        if key not in self._forms:
            self._forms[key] = form_of(places, self.token_ids(ask, places), self.block_tokens)
        return self._forms[key]


def send_in_order(
    asks: Sequence[Ask], case: OrderCase, size: CacheSize, renderer: Renderer
) -> Iterator[SentPrompt]:
    """Yields the prompts as the generator would send them, each with what was cached.

    The backlog is refilled before each prompt, until the stream ends.
    """
    tree = KvTree(block_tokens=size.block_tokens)
    prefixes = CachedPrefixes(tree)
    order = (
        CacheAware(prefixes) if case.order == "cache_aware" else make_order(case.order, prefixes)
    )
    queue = PromptQueue(
        ServerCache(prefixes=prefixes, order=order), overtaken_max=case.overtaken_max
    )
    server = BlockSimulator(size)
    waiting: dict[int, Ask] = {}
    arriving = enumerate(asks)
    for seq in itertools.count():
        for id, ask in itertools.islice(arriving, case.backlog - len(waiting)):
            waiting[id] = ask
            forms = () if case.order == "arrival" else renderer.forms(ask, case.score_loss_max)
            queue.add(QueuedPrompt(Prompt(id=id, arrival_us=id, forms=forms)))
        queued = queue.take_next(now_us=0)
        if queued is None:
            return
        ask = waiting.pop(queued.prompt.id)
        token_ids = renderer.token_ids(ask, queued.form.passages if queued.form else by_score(ask))
        found = server.start(token_ids)
        queue.cache_changed(tree.step(server.take_batch(seq)))
        yield SentPrompt(token_ids=token_ids, cached_tokens=found.cached)


def by_score(ask: Ask) -> tuple[int, ...]:
    """Returns the order of scores, as places in it."""
    return tuple(range(len(ask.passages)))


def share_of(sent: Sequence[SentPrompt]) -> CachedShare:
    """Returns the cached and computed tokens of prompts that were sent."""
    cached = sum(prompt.cached_tokens for prompt in sent)
    return CachedShare(
        prompts=len(sent),
        cached_tokens=cached,
        computed_tokens=sum(len(prompt.token_ids) for prompt in sent) - cached,
    )
