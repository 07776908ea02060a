"""The prompts that wait for the LLM server. The next one is chosen when it is sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from carpool.loop.priority.deficit_round_robin import DeficitRoundRobin
from generator.plan.kv_tree import KvTreeStep
from generator.plan.order.cached_prefixes import CachedPrefixes, PromptForm
from generator.plan.order.overtaking import BoundedOvertaking
from generator.plan.order.protocol import NextPrompt

OLDEST_EVERY = 16
"""Every 16th prompt sent is the one that waited longest, so no priority starves a prompt."""


@dataclass(frozen=True, kw_only=True)
class OrderByCache:
    """How the queue chooses between prompts of one priority and tenant that have no deadline.

    `order` chooses by what is in `prefixes`.
    """

    order: BoundedOvertaking
    prefixes: CachedPrefixes


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt as the queue sees it. Lower `priority` is sooner; times are epoch microseconds.

    `due_us`: the deadline of another query that waits for its answer; it only orders. `forms`: the
    ways to send it, as far as its tokens are known.
    """

    id: int
    arrival_us: int
    priority: int = 0
    deadline_us: int | None = None
    due_us: int | None = None
    tenant: str = ""
    forms: tuple[PromptForm, ...] = ()

    def is_late(self, now_us: int) -> bool:
        """Returns whether the deadline has passed."""
        return self.deadline_us is not None and now_us >= self.deadline_us

    def orders_by_us(self) -> int | None:
        """Returns the deadline by which it is ordered; None if there is none."""
        return self.deadline_us if self.due_us is None else self.due_us

    def arrival(self) -> tuple[int, int]:
        """Returns the key of the order of arrival."""
        return (self.arrival_us, self.id)

    def is_equal_to(self, other: Prompt) -> bool:
        """Returns whether neither priority nor a deadline puts one of the two first."""
        has_deadline = self.orders_by_us() is not None or other.orders_by_us() is not None
        return self.priority == other.priority and not has_deadline

    def urgency(self) -> tuple[int, bool, int, int, int]:
        """Returns the key of the order: priority, deadline (none is last), arrival, id."""
        due_us = self.orders_by_us()
        return (
            self.priority,
            due_us is None,
            due_us or 0,
            self.arrival_us,
            self.id,
        )


@dataclass(slots=True)
class QueuedPrompt:
    """A prompt, waiting or at the server, and its tries so far.

    `is_begun`: the server has begun to answer the last try. `failures`: those that the prompt may
    have caused. `not_before_us`: when it may be sent again. `form`: that of the last try, if an
    order chose one.
    """

    prompt: Prompt
    attempts: int = 0
    is_begun: bool = False
    failures: int = 0
    answered_at_failure: int = 0
    not_before_us: int = 0
    form: PromptForm | None = None


class PromptQueue:
    """The waiting prompts. Choosing one costs O(waiting).

    The next one is of the best priority, and has the earliest deadline. Prompts without a deadline
    come after those with one, in the order of arrival. With `by_cache` tenants take turns among
    them, and it is chosen by the cache which of a tenant's prompts is next.
    """

    def __init__(self, by_cache: OrderByCache | None = None) -> None:
        self._waiting: dict[int, QueuedPrompt] = {}
        self._taken = 0
        self._by_cache = by_cache
        self._tenants = DeficitRoundRobin(quantum=1, weight_of=lambda _: 1)
        self._with_work: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, id: int) -> bool:
        return id in self._waiting

    def __iter__(self) -> Iterator[QueuedPrompt]:
        return iter(self._waiting.values())

    def add(self, queued: QueuedPrompt) -> None:
        """Adds a prompt that is new, or that was refused."""
        self._waiting[queued.prompt.id] = queued
        if self._by_cache is not None and queued.prompt.forms:
            self._by_cache.prefixes.add(queued.prompt.id, queued.prompt.forms)

    def set_forms(self, id: int, forms: Sequence[PromptForm]) -> None:
        """Notes in which forms a waiting prompt may be sent. Ignores one that does not wait."""
        queued = self._waiting.get(id)
        if queued is not None:
            queued.prompt = replace(queued.prompt, forms=tuple(forms))
            if self._by_cache is not None:
                self._by_cache.prefixes.remove(id)
                self._by_cache.prefixes.add(id, forms)

    def cache_changed(self, step: KvTreeStep) -> None:
        """Follows what the server has cached."""
        if self._by_cache is not None:
            self._by_cache.prefixes.changed(step)

    def get(self, id: int) -> QueuedPrompt | None:
        """Returns a prompt that waits, or None."""
        return self._waiting.get(id)

    def remove(self, id: int) -> QueuedPrompt | None:
        """Removes a prompt without sending it; returns None if it does not wait."""
        queued = self._waiting.pop(id, None)
        if queued is not None and self._by_cache is not None:
            self._by_cache.prefixes.remove(id)
            self._by_cache.order.forget(id)
        return queued

    def has_probe(self) -> bool:
        """Returns whether a prompt waits that can probe the server.

        A prompt that may itself have caused a failure says nothing about the server.
        """
        return any(queued.failures == 0 for queued in self)

    def take_probe(self) -> QueuedPrompt:
        """Removes and returns the prompt to probe the server with; `has_probe` was True."""
        fit = [queued.prompt for queued in self if queued.failures == 0]
        return self._take(min(fit, key=Prompt.urgency))

    def take_next(self, now_us: int) -> QueuedPrompt | None:
        """Removes and returns the next prompt to send, or None if none may be sent now."""
        ready = [queued.prompt for queued in self if queued.not_before_us <= now_us]
        if not ready:
            return None
        first = min(ready, key=Prompt.urgency)
        if (self._taken + 1) % OLDEST_EVERY == 0:
            oldest = min(ready, key=Prompt.arrival)
            if self._by_cache is None or not first.is_equal_to(oldest):
                return self._take(oldest)
        if self._by_cache is None or first.orders_by_us() is not None:
            return self._take(first)
        next_prompt = self._choose([prompt for prompt in ready if prompt.is_equal_to(first)])
        queued = self._take(self._waiting[next_prompt.id].prompt)
        queued.form = next_prompt.form
        return queued

    def has_ready(self, now_us: int) -> bool:
        """Returns whether a prompt may be sent now."""
        return any(queued.not_before_us <= now_us for queued in self)

    def _choose(self, prompts: Sequence[Prompt]) -> NextPrompt:
        """Chooses between prompts of one priority without a deadline: the tenant, then which."""
        assert self._by_cache is not None
        of_tenant: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            of_tenant.setdefault(prompt.tenant, []).append(prompt)
        for tenant in self._with_work - of_tenant.keys():
            self._tenants.leave(tenant)
        for tenant in of_tenant:  # in the order of their prompts
            self._tenants.join(tenant)
        self._with_work = set(of_tenant)
        turn = self._tenants.next(lambda _: 1)
        assert turn is not None, "a prompt is ready, so its tenant has work"
        ids = [prompt.id for prompt in sorted(of_tenant[turn], key=Prompt.arrival)]
        return self._by_cache.order.choose(ids)

    def _take(self, prompt: Prompt) -> QueuedPrompt:
        self._taken += 1
        queued = self.remove(prompt.id)
        assert queued is not None, f"prompt {prompt.id} does not wait"
        queued.form = None
        return queued
