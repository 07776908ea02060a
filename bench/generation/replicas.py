"""One stream of prompts through the generator's dispatcher to several simulated LLM servers.

The decisions are those of `Dispatcher`. A server is a `BlockSimulator` whose KV events the
dispatcher follows. The clock is virtual: a request lasts as long as its computed and written tokens
take, whatever else its server does. So times are no result; hits, and how evenly the work is
spread, are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.generation.block_simulator import BlockSimulator, CacheSize
from bench.generation.simulation import CachedShare, Renderer, SentPrompt, share_of
from bench.generation.streams import Ask
from generator.plan.dispatch import CacheOrder, Dispatcher, DispatchLimits
from generator.plan.dispatch_events import (
    CacheChanged,
    CheckPassed,
    CheckServer,
    DispatchAction,
    DispatchEvent,
    PromptArrived,
    RequestEnded,
    RequestRefused,
    SendPrompt,
    TimePassed,
)
from generator.plan.order.factory import OrderName
from generator.plan.queue import Prompt

COMPUTED_TOKEN_US = 1_000
WRITTEN_TOKEN_US = 20_000
"""Of a small model on a CPU. With five and twenty times less for a written token, hit shares are
within 0.01 of those with this one."""
DOWN_US = 5_000_000
_BACKOFF_US = 500_000


class ReplicasCase(msgspec.Struct, frozen=True, kw_only=True):
    """Servers, and how prompts are sent to them.

    `order` None: round robin in the order of arrival, by one that knows no cache. `backlog`:
    prompts that wait while all places are taken; less than 0 leaves so many places free.
    `overtaken_max`, `score_loss_max`: as in `OrderCase`. `killed_after`: prompts that are sent
    before the first server is killed; it comes back after a while, with nothing cached.
    """

    servers: int
    order: OrderName | None
    backlog: int = 64
    overtaken_max: int | None = None
    score_loss_max: float | None = None
    killed_after: int | None = None


class ReplicasResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers did.

    `requests_of_mean`, `computed_of_mean`: the requests, and the computed tokens, of the server
    with most of them, divided by the mean. `resent`: prompts that were sent again after the kill.
    `answered`: prompts that were, each once. `miscredited_blocks`: blocks that the dispatcher
    thought cached when it sent a prompt, and which were not. `sent`: the prompts of each server, in
    order.
    """

    share: CachedShare
    requests_of_mean: float
    computed_of_mean: float
    resent: int
    answered: int
    miscredited_blocks: int
    sent: tuple[tuple[SentPrompt, ...], ...]


@dataclass(slots=True)
class _Replica:
    cache: BlockSimulator
    next_seq: int = 0
    sent: list[SentPrompt] = field(default_factory=list)
    is_down: bool = False

    def start(self, token_ids: tuple[int, ...]) -> int:
        """Starts a request; returns its cached tokens."""
        cached = self.cache.start(token_ids).cached
        self.sent.append(SentPrompt(token_ids=token_ids, cached_tokens=cached))
        return cached


def send_to_replicas(
    asks: Sequence[Ask], case: ReplicasCase, size: CacheSize, renderer: Renderer
) -> ReplicasResult:
    """Sends the prompts as the generator would, and returns what the servers did."""
    if case.order is None:
        return _round_robin(asks, case, size, renderer)
    return _Run(asks, case, size, renderer).run()


def _round_robin(
    asks: Sequence[Ask], case: ReplicasCase, size: CacheSize, renderer: Renderer
) -> ReplicasResult:
    replicas = [_Replica(BlockSimulator(size)) for _ in range(case.servers)]
    for place, ask in enumerate(asks):
        by_score = tuple(range(len(ask.passages)))
        replicas[place % case.servers].start(renderer.token_ids(ask, by_score))
    return _result(replicas, resent=0, answered=len(asks), miscredited=0)


class _Run:
    """One run: the dispatcher, the servers, and the events that are still to come."""

    def __init__(
        self, asks: Sequence[Ask], case: ReplicasCase, size: CacheSize, renderer: Renderer
    ) -> None:
        assert case.order is not None, "round robin has no dispatcher"
        self._asks, self._case, self._size, self._renderer = asks, case, size, renderer
        self._dispatcher = Dispatcher(
            DispatchLimits(
                concurrency=size.concurrency,
                prompts_max=case.servers * size.concurrency + case.backlog,
                backoff_us_min=_BACKOFF_US,
                backoff_us_max=_BACKOFF_US,
                retry_after_us_max=0,
                tries_max=6,
            ),
            servers=case.servers,
            order=CacheOrder(
                name=case.order,
                block_tokens=size.block_tokens,
                overtaken_max=case.overtaken_max,
            ),
        )
        self._replicas = [_Replica(BlockSimulator(size)) for _ in range(case.servers)]
        self._at_server: dict[int, int] = {}
        self._coming: list[tuple[int, int, DispatchEvent]] = []
        self._scheduled = self._sent = self._answered = self._miscredited = 0
        self._comes_back_us: int | None = None
        self._now_us = 0

    def run(self) -> ReplicasResult:
        self._happened(TimePassed())
        while self._coming:  # every server passes its check before the first prompt arrives
            self._happened(heapq.heappop(self._coming)[2])
        arriving = iter(enumerate(self._asks))
        self._arrive(arriving)
        while self._coming:
            self._now_us, _, event = heapq.heappop(self._coming)
            if isinstance(event, RequestEnded):
                if event.id not in self._at_server:
                    continue  # its server was killed
                del self._at_server[event.id]
                self._answered += 1
            self._happened(event)
            kill = self._case.killed_after
            if kill is not None and self._sent >= kill and self._comes_back_us is None:
                self._kill(0)
            self._arrive(arriving)
        self._dispatcher.check_integrity()
        return _result(
            self._replicas,
            resent=self._sent - len(self._asks),
            answered=self._answered,
            miscredited=self._miscredited,
        )

    def _arrive(self, arriving: Iterator[tuple[int, Ask]]) -> None:
        while self._dispatcher.credit() > 0 and (one := next(arriving, None)) is not None:
            id, ask = one
            forms = self._renderer.forms(ask, self._case.score_loss_max)
            self._happened(PromptArrived(prompt=Prompt(id=id, arrival_us=id, forms=forms)))

    def _happened(self, event: DispatchEvent) -> None:
        actions = list(self._dispatcher.step(event, self._now_us))
        while actions:
            self._do(actions.pop(0), actions)
        wake_us = self._dispatcher.wake_us()
        if wake_us is not None:
            self._later(wake_us, TimePassed())

    def _do(self, action: DispatchAction, actions: list[DispatchAction]) -> None:
        match action:
            case CheckServer(server=server):
                is_down = self._replicas[server].is_down
                if is_down and self._now_us >= (self._comes_back_us or 0):
                    is_down = self._replicas[server].is_down = False
                self._later(
                    self._now_us,
                    RequestRefused(id=None, server=server, is_lost=True)
                    if is_down
                    else CheckPassed(server=server),
                )
            case SendPrompt():
                actions += self._send(action)

    def _send(self, action: SendPrompt) -> Sequence[DispatchAction]:
        """Starts a request; returns what the dispatcher wants next."""
        replica, ask = self._replicas[action.server], self._asks[action.id]
        form, tree = action.form, self._dispatcher.tree(action.server)
        assert tree is not None and not replica.is_down
        passages = form.passages if form else tuple(range(len(ask.passages)))
        credited = tree.cached_tokens(form.digests) if form else 0
        token_ids = self._renderer.token_ids(ask, passages)
        cached = replica.start(token_ids)
        self._miscredited += max(0, credited - cached) // self._size.block_tokens
        self._sent += 1
        self._at_server[action.id] = action.server
        written = self._size.output_tokens
        lasts_us = (len(token_ids) - cached) * COMPUTED_TOKEN_US + written * WRITTEN_TOKEN_US
        self._later(self._now_us + lasts_us, RequestEnded(id=action.id))
        batch = replica.cache.take_batch(replica.next_seq)
        replica.next_seq += 1
        return self._dispatcher.step(CacheChanged(server=action.server, event=batch), self._now_us)

    def _kill(self, server: int) -> None:
        replica = self._replicas[server]
        replica.cache, replica.next_seq, replica.is_down = BlockSimulator(self._size), 0, True
        self._comes_back_us = self._now_us + DOWN_US
        lost = [id for id, at in self._at_server.items() if at == server]
        for id in lost:
            del self._at_server[id]
        for id in lost:
            self._happened(RequestRefused(id=id, server=server, suspect=True, is_lost=True))

    def _later(self, time_us: int, event: DispatchEvent) -> None:
        self._scheduled += 1
        heapq.heappush(self._coming, (time_us, self._scheduled, event))


def _result(
    replicas: Sequence[_Replica], *, resent: int, answered: int, miscredited: int
) -> ReplicasResult:
    requests = [len(replica.sent) for replica in replicas]
    computed = [share_of(replica.sent).computed_tokens for replica in replicas]
    return ReplicasResult(
        share=share_of([prompt for replica in replicas for prompt in replica.sent]),
        requests_of_mean=max(requests) * len(requests) / sum(requests),
        computed_of_mean=max(computed) * len(computed) / sum(computed),
        resent=resent,
        answered=answered,
        miscredited_blocks=miscredited,
        sent=tuple(tuple(replica.sent) for replica in replicas),
    )
