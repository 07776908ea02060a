"""The prompts that wait for the LLM servers. The next one is chosen when it is sent. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from generator.plan.cached_prefixes import CachedPrefixes
from generator.plan.kv_tree import KvTreeStep
from generator.plan.refusals import Digest, RefusedPrompts
from schemas.topics import BATCH_PRIORITY

OLDEST_EVERY = 16
"""Every 16th prompt sent is the one that waited longest, so no priority and no order starves a
prompt: it waits for at most 16 times as many prompts as waited when it came. While slots are kept
from a batch, one of its prompts is at a server, and the oldest interactive one is sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt as the queue sees it. Lower `priority` is sooner; times are epoch microseconds.

    `due_us`: the deadline of another query that waits for the same answer; it affects the order
    only. `token_ids`: empty while they are not known. `warmed_at`: the server that was warmed for
    the prompt. `steps_done`: finished steps of its workflow. `key`: of prompts with an equal key
    one is sent at a time, and its text is that of all; None: there is none. `digest`: of prompts
    with an equal digest the refusals count together.
    """

    id: int
    arrival_us: int
    priority: int = 0
    deadline_us: int | None = None
    due_us: int | None = None
    tenant: str = ""
    token_ids: Sequence[int] = ()
    warmed_at: int | None = None
    steps_done: int = 0
    key: str | None = None
    digest: str | None = None

    @property
    def refusal_key(self) -> Digest:
        """What its refusals are counted by."""
        return self.id if self.digest is None else self.digest

    @property
    def is_batch(self) -> bool:
        """Whether it is of the class batch, and no interactive query waits for its answer."""
        return self.priority > BATCH_PRIORITY // 2  # which no query can ask for

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

    def urgency(self) -> tuple[int, float, int, int]:
        """Returns the key of the order: priority, deadline (none is last), arrival, id."""
        due_us = self.orders_by_us()
        return self.priority, math.inf if due_us is None else due_us, self.arrival_us, self.id


@dataclass(slots=True)
class QueuedPrompt:
    """A prompt, waiting or at a server, and its tries so far.

    `paid`: tries in which a server began to reply and completed no answer. Of the last try:
    `sent_us`; `server`, and how many requests it had `accepted`; `is_begun`, whether it began to
    answer; and `cached_tokens`, the tokens that the tree had as cached.
    """

    prompt: Prompt
    attempts: int = 0
    paid: int = 0
    sent_us: int = 0
    server: int = 0
    accepted: int = 0
    is_begun: bool = False
    cached_tokens: int | None = None


class PromptQueue:
    """The waiting prompts. Choosing one costs O(those that may go).

    The next one is of the best priority, and has the earliest deadline. Prompts without a deadline
    come after those with one, in the order of arrival. If steps of workflows that have begun are
    among these, or if KV events say what the servers have cached, tenants take turns. Of one
    tenant, the workflows with most finished steps go first. Among equal ones each server chooses by
    what it has cached. The prompt goes to the server that has most of it cached; if they are equal,
    to the first. A prompt waits while one with an equal key is at a server. A server that refused a
    prompt gets it again after a pause only.
    """

    def __init__(
        self, *caches: CachedPrefixes, servers: int = 1, refused: RefusedPrompts | None = None
    ) -> None:
        """`caches`: what each server has cached of the waiting prompts; none: not followed."""
        self._waiting: dict[int, QueuedPrompt] = {}
        # By server: the prompts whose pause is over, and when the pauses of the others end.
        self._ready: tuple[dict[int, QueuedPrompt], ...] = tuple({} for _ in range(servers))
        self._paused: tuple[list[tuple[int, int]], ...] = tuple([] for _ in range(servers))
        self._taken = 0
        self._sent_keys: set[str | None] = set()
        self._caches = caches
        self._refused = refused or RefusedPrompts()
        self._turns: dict[str, int] = {}  # prompts taken when the tenants with work had theirs

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, id: int) -> bool:
        return id in self._waiting

    def __iter__(self) -> Iterator[QueuedPrompt]:
        return iter(self._waiting.values())

    def add(self, queued: QueuedPrompt) -> None:
        """Adds a prompt that is new, or that was refused."""
        self._waiting[queued.prompt.id] = queued
        for ready in self._ready:
            ready[queued.prompt.id] = queued
        if queued.prompt.token_ids:
            for cache in self._caches:
                cache.add(queued.prompt.id, queued.prompt.token_ids)

    def note_tokens(self, id: int) -> None:
        """Notes that the tokens of a prompt are known, if it waits."""
        if (queued := self._waiting.get(id)) is not None:
            for cache in self._caches:
                cache.remove(id)
                cache.add(id, queued.prompt.token_ids)

    def cache_changed(self, step: KvTreeStep, server: int = 0) -> None:
        """Follows what a server has cached."""
        if self._caches:
            self._caches[server].changed(step)

    def get(self, id: int) -> QueuedPrompt | None:
        """Returns a prompt that waits, or None."""
        return self._waiting.get(id)

    def remove(self, id: int) -> QueuedPrompt | None:
        """Removes a prompt without sending it; returns None if it does not wait."""
        for ready in self._ready:
            ready.pop(id, None)
        for cache in self._caches:
            cache.remove(id)
        return self._waiting.pop(id, None)

    def take_next(
        self, now_us: int, servers: Sequence[int] = (0,), kept: Collection[int] = ()
    ) -> QueuedPrompt | None:
        """Removes and returns the next prompt to send, or None if none may be sent now.

        `servers`: those that may take it, the preferred first; at least one. `kept`: those that
        take no prompt of a batch now.
        """
        may_go = {server: self.may_go(server, now_us, kept) for server in servers}
        ready = {id: one for ones in may_go.values() for id, one in ones.items()}.values()
        if not ready:
            return None
        first = min(ready, key=Prompt.urgency)
        equal = [prompt for prompt in ready if prompt.is_equal_to(first)]
        if (self._taken + 1) % OLDEST_EVERY == 0:
            first = min(ready, key=Prompt.arrival)
        elif equal and (self._caches or any(prompt.steps_done for prompt in equal)):
            ids = self._of_tenant(equal)
            choices = [
                (server, self._caches[server].choose(here) if self._caches else here[0])
                for server, ones in may_go.items()
                if (here := [id for id in ids if id in ones])
            ]
            server, id = max(choices, key=lambda choice: self._gain(*choice))
            return self._take(id, {server: may_go[server]})
        return self._take(first.id, may_go)

    def take_probe(
        self, now_us: int, server: int, kept: Collection[int] = ()
    ) -> QueuedPrompt | None:
        """Removes and returns the prompt to prove a server with: the oldest of those with fewest
        refusals, or None if none may be sent now.
        """
        ready = self.may_go(server, now_us, kept)
        if not ready:
            return None
        refusals = {id: self._refused.of(one.refusal_key).count for id, one in ready.items()}
        oldest = min(ready.values(), key=lambda one: (refusals[one.id], *one.arrival()))
        return self._take(oldest.id, {server: ready})

    def may_go(self, server: int, now_us: int, kept: Collection[int] = ()) -> dict[int, Prompt]:
        """Returns the prompts that a server may get now, while no equal one is at a server."""
        ready, paused = self._ready[server], self._paused[server]
        while paused and paused[0][0] <= now_us:
            _, id = heappop(paused)
            if id in self._waiting:
                ready[id] = self._waiting[id]
        may_go, is_kept = dict[int, Prompt](), server in kept
        for id, queued in tuple(ready.items()):
            prompt = queued.prompt
            refusals = self._refused.of(prompt.refusal_key)
            if (until_us := refusals.not_before_us.get(server, 0)) > now_us:
                heappush(paused, (until_us, id))
                del ready[id]
            elif prompt.key not in self._sent_keys and not (is_kept and prompt.is_batch):
                may_go[id] = prompt
        return may_go

    def look_again(self, digests: Collection[Digest]) -> None:
        """Notes that pauses have ended early: these prompts were answered, or forgiven."""
        for id, queued in self._waiting.items():
            if queued.prompt.refusal_key in digests:
                for ready in self._ready:
                    ready[id] = queued

    def came_back(self, prompt: Prompt) -> None:
        """Notes that a prompt is at no server any more, so an equal one may be sent."""
        self._sent_keys.discard(prompt.key)

    def take_equal(self, prompt: Prompt) -> list[int]:
        """Removes the waiting prompts with the key of an answered one; returns their ids."""
        same = [id for id, queued in self._waiting.items() if queued.prompt.key == prompt.key]
        ids = [] if prompt.key is None else same
        for id in ids:
            self.remove(id)
        return ids

    def _of_tenant(self, prompts: Sequence[Prompt]) -> list[int]:
        """Returns the prompts with most finished steps of the next tenant, in order of arrival."""
        of_tenant: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            of_tenant.setdefault(prompt.tenant, []).append(prompt)
        turns = self._turns = {tenant: self._turns.get(tenant, self._taken) for tenant in of_tenant}
        turn = min(turns, key=turns.__getitem__)  # in the order of their prompts, if equal
        turns[turn] = self._taken + 1
        most = max(prompt.steps_done for prompt in of_tenant[turn])
        first = [prompt for prompt in of_tenant[turn] if prompt.steps_done == most]
        return [prompt.id for prompt in sorted(first, key=Prompt.arrival)]

    def _gain(self, server: int, id: int) -> float:
        found = self._caches[server].cached_over_computed(id) if self._caches else None
        if found is None:  # most prompts that were warmed are sent before their tokens are known
            return float(self._waiting[id].prompt.warmed_at == server)
        return found

    def _take(self, id: int, may_go: Mapping[int, Collection[int]]) -> QueuedPrompt:
        """Removes a prompt, and assigns it to the server that has most of it cached."""
        fit = [server for server, ids in may_go.items() if id in ids]
        server = max(fit, key=lambda server: self._gain(server, id))
        cached_tokens = self._caches[server].cached_tokens(id) if self._caches else None
        queued = self.remove(id)
        assert queued is not None, f"prompt {id} does not wait"
        self._taken += 1
        if queued.prompt.key is not None:
            self._sent_keys.add(queued.prompt.key)
        queued.server, queued.cached_tokens = server, cached_tokens
        return queued
