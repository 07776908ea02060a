"""The prompts that wait for the LLM servers. The next one is chosen when it is sent. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from carpool.loop.priority.deficit_round_robin import DeficitRoundRobin
from generator.plan.cached_prefixes import CachedPrefixes, PromptBlocks
from generator.plan.kv_tree import KvTreeStep

OLDEST_EVERY = 16
"""Every 16th prompt sent is the one that waited longest, so no priority and no order starves a
prompt: it waits for at most 16 times as many prompts as waited when it came."""
Choose = Callable[[Sequence[int]], int]
"""Returns the next of several prompts, which are in the order of arrival and at least one."""


@dataclass(frozen=True, kw_only=True)
class ServerCache:
    """What a server has cached of the waiting prompts, and how the next one for it is chosen.

    `choose`: among prompts of one priority and one tenant that have no deadline; None: the order of
    arrival.
    """

    prefixes: CachedPrefixes
    choose: Choose | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt as the queue sees it. Lower `priority` is sooner; times are epoch microseconds.

    `due_us`: the deadline of another query that waits for the same answer; it affects the order
    only. `blocks`: None while its tokens are not known. `warmed_at`: the server that was warmed for
    the prompt.
    """

    id: int
    arrival_us: int
    priority: int = 0
    deadline_us: int | None = None
    due_us: int | None = None
    tenant: str = ""
    blocks: PromptBlocks | None = None
    warmed_at: int | None = None

    def is_late(self, now_us: int) -> bool:
        """Returns whether the deadline has passed."""
        return self.deadline_us is not None and now_us >= self.deadline_us

    def orders_by_us(self) -> int | None:
        """Returns the deadline that orders this prompt; None if it has no deadline."""
        return self.deadline_us if self.due_us is None else self.due_us

    def arrival(self) -> tuple[int, int]:
        """Returns the key of the order of arrival."""
        return (self.arrival_us, self.id)

    def is_equal_to(self, other: Prompt) -> bool:
        """Returns whether priority and deadlines put neither of the two prompts first."""
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
    """A prompt, waiting or at a server, and its tries so far.

    `is_begun`: the server has begun to answer the last try. `failures`: those that the prompt may
    have caused. `answered_at_failure`: how many prompts each server had answered when it last
    failed on this prompt. `not_before_us`: when the prompt may be sent again. Of the last try:
    `server`, and `cached_tokens`, the tokens that the tree had as cached.
    """

    prompt: Prompt
    attempts: int = 0
    is_begun: bool = False
    failures: int = 0
    answered_at_failure: dict[int, int] = field(default_factory=dict)
    not_before_us: int = 0
    server: int = 0
    cached_tokens: int | None = None


class PromptQueue:
    """The waiting prompts. Choosing one costs O(waiting).

    The next one is of the best priority, and has the earliest deadline. Prompts without a deadline
    come after those with one, in the order of arrival. With an order, tenants take turns among
    these prompts, and the order chooses among the prompts of one tenant by what is cached. If
    several servers may take a prompt, it goes to the server that has most of it cached; if they are
    equal, to the first. With an order each server chooses a prompt, and these choices are compared
    in the same way.
    """

    def __init__(self, *caches: ServerCache) -> None:
        """`caches`: one for each server, or none; all have an order, or none has."""
        self._waiting: dict[int, QueuedPrompt] = {}
        self._taken = 0
        self._caches = caches
        self._has_order = any(cache.choose is not None for cache in caches)
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
        if queued.prompt.blocks is not None:
            for cache in self._caches:
                cache.prefixes.add(queued.prompt.id, queued.prompt.blocks)

    def set_blocks(self, id: int, blocks: PromptBlocks) -> None:
        """Notes the blocks of a waiting prompt. Ignores one that does not wait."""
        queued = self._waiting.get(id)
        if queued is not None:
            queued.prompt = replace(queued.prompt, blocks=blocks)
            for cache in self._caches:
                cache.prefixes.remove(id)
                cache.prefixes.add(id, blocks)

    def cache_changed(self, step: KvTreeStep, server: int = 0) -> None:
        """Follows what a server has cached."""
        if self._caches:
            self._caches[server].prefixes.changed(step)

    def get(self, id: int) -> QueuedPrompt | None:
        """Returns a prompt that waits, or None."""
        return self._waiting.get(id)

    def remove(self, id: int) -> QueuedPrompt | None:
        """Removes a prompt without sending it; returns None if it does not wait."""
        queued = self._waiting.pop(id, None)
        if queued is not None:
            for cache in self._caches:
                cache.prefixes.remove(id)
        return queued

    def has_probe(self) -> bool:
        """Returns whether a prompt waits that can probe a server.

        A prompt that may itself have caused a failure says nothing about the server.
        """
        return any(queued.failures == 0 for queued in self)

    def take_probe(self, server: int) -> QueuedPrompt:
        """Removes and returns the prompt to probe the server with; `has_probe` was True."""
        fit = [queued.prompt for queued in self if queued.failures == 0]
        return self._take(min(fit, key=Prompt.urgency).id, (server,))

    def take_next(self, now_us: int, servers: Sequence[int] = (0,)) -> QueuedPrompt | None:
        """Removes and returns the next prompt to send, or None if none may be sent now.

        `servers`: those that may take it, the preferred first; at least one.
        """
        ready = [queued.prompt for queued in self if queued.not_before_us <= now_us]
        if not ready:
            return None
        first = min(ready, key=Prompt.urgency)
        if (self._taken + 1) % OLDEST_EVERY == 0:
            return self._take(min(ready, key=Prompt.arrival).id, servers)
        if not self._has_order or first.orders_by_us() is not None:
            return self._take(first.id, servers)
        ids = self._of_tenant([prompt for prompt in ready if prompt.is_equal_to(first)])
        choices = [(server, self._choose(server, ids)) for server in servers]
        server, id = max(choices, key=lambda choice: self._gain(*choice))
        return self._take(id, (server,))

    def has_ready(self, now_us: int) -> bool:
        """Returns whether a prompt may be sent now."""
        return any(queued.not_before_us <= now_us for queued in self)

    def _of_tenant(self, prompts: Sequence[Prompt]) -> list[int]:
        """Returns the prompts of the tenant whose turn it is, in the order of arrival."""
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
        return [prompt.id for prompt in sorted(of_tenant[turn], key=Prompt.arrival)]

    def _choose(self, server: int, ids: Sequence[int]) -> int:
        choose = self._caches[server].choose
        assert choose is not None, "all servers have an order, or none has"
        return choose(ids)

    def _gain(self, server: int, id: int) -> float:
        prefixes = self._caches[server].prefixes if self._caches else None
        found = None if prefixes is None else prefixes.cached_over_computed(id)
        if found is None:  # most prompts that were warmed are sent before their blocks are known
            return float(self._waiting[id].prompt.warmed_at == server)
        return found

    def _take(self, id: int, servers: Sequence[int]) -> QueuedPrompt:
        """Removes a prompt, and assigns it to the server that has most of it cached."""
        server = max(servers, key=lambda server: self._gain(server, id))
        prefixes = self._caches[server].prefixes if self._caches else None
        cached_tokens = None if prefixes is None else prefixes.cached_tokens(id)
        queued = self.remove(id)
        assert queued is not None, f"prompt {id} does not wait"
        self._taken += 1
        queued.server, queued.cached_tokens = server, cached_tokens
        return queued
