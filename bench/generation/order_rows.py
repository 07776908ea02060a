"""Simulates each order of prompts on one stream: rows with the cached share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bench.generation.baselines import by_shared_passages, computed_once, context_pilot, send
from bench.generation.block_simulator import CacheSize
from bench.generation.simulation import (
    CachedShare,
    OrderCase,
    Renderer,
    by_score,
    send_in_order,
    share_of,
)
from bench.generation.streams import Ask, StreamName

BACKLOG = 1024
BACKLOGS = (64, 256, BACKLOG)
SCORE_LOSS_MAX = 0.05
"""How much higher the score of a passage may be than that of one before it, in some rows. The
service keeps the order of the scores by default."""
ANY_ORDER = 2.0
"""Scores are cosines, so no loss is higher: passages stand in any order."""
SHARE_MIN: dict[StreamName, float] = {"natural": 0.27, "zipf": 0.60}
"""The hit share that is promised with a backlog of 1,024 and no bound of overtaking."""


class OrderRow(msgspec.Struct, frozen=True, kw_only=True):
    """An order of prompts, and what was cached.

    `template`: of the prompts. `backlog` 0: all prompts of the stream; 1: none waits.
    `overtaken_max` None: no bound. `score_loss_max` None: passages stand in the order of their
    scores. `computed_per_answer`: tokens of prompts for each answer; with `reuse` the answers to
    equal prompts count that were not generated.
    """

    stream: StreamName
    template: str
    order: str
    backlog: int
    hit_share: float
    computed_per_answer: float
    overtaken_max: int | None = None
    score_loss_max: float | None = None
    reuse: bool = False


CASES = (
    OrderCase(order="arrival", backlog=1),
    OrderCase(order="cache_aware", backlog=BACKLOG, overtaken_max=32),
    OrderCase(order="cache_aware", backlog=BACKLOG),
    OrderCase(
        order="cache_aware", backlog=BACKLOG, overtaken_max=64, score_loss_max=SCORE_LOSS_MAX
    ),
    OrderCase(order="cache_aware", backlog=BACKLOG, score_loss_max=SCORE_LOSS_MAX),
    OrderCase(order="cached_prefix", backlog=BACKLOG),
    *(
        OrderCase(
            order="cached_prefix",
            backlog=backlog,
            overtaken_max=overtaken_max,
            score_loss_max=SCORE_LOSS_MAX,
        )
        for backlog in BACKLOGS
        for overtaken_max in (backlog, None)
    ),
    OrderCase(order="cached_prefix", backlog=BACKLOG, score_loss_max=ANY_ORDER),
)
"""By default a prompt is overtaken at most as often as prompts can wait."""


PROMISED_CASES = (
    OrderCase(order="arrival", backlog=1),
    *(
        OrderCase(
            order="cached_prefix",
            backlog=BACKLOG,
            overtaken_max=overtaken_max,
            score_loss_max=SCORE_LOSS_MAX,
        )
        for overtaken_max in (BACKLOG, None)
    ),
)
"""The rows for the longer prompts, whose cached shares are promised."""


class OrderBench:
    """The rows of one stream. `template`: of the prompts that `renderer` renders."""

    def __init__(
        self,
        stream: StreamName,
        asks: Sequence[Ask],
        size: CacheSize,
        renderer: Renderer,
        *,
        template: str,
    ) -> None:
        self._stream, self._asks, self._size = stream, asks, size
        self._renderer, self._template = renderer, template

    def rows(self, cases: Sequence[OrderCase]) -> Iterator[OrderRow]:
        """Yields a row for each order, as it is simulated."""
        for case in cases:
            yield self._row(case, self._sent(self._asks, case))

    def compared(self) -> Iterator[OrderRow]:
        """Yields the rows to compare with: baselines, bounds, and one generation for equal prompts.

        Of equal prompts the first one is sent and answers the others.
        """
        for backlog in (BACKLOGS[0], BACKLOG):
            shared = by_shared_passages(self._asks, backlog=backlog)
            sent = send(((ask, by_score(ask)) for ask in shared), self._size, self._renderer)
            yield self._made("shared passages", backlog, share_of(list(sent)))
        for backlog in (1, BACKLOG):
            aligned = context_pilot(self._asks, backlog=backlog)
            found = share_of(list(send(aligned, self._size, self._renderer)))
            yield self._made("ContextPilot", backlog, found, score_loss_max=ANY_ORDER)
        for score_loss_max in (None, SCORE_LOSS_MAX):
            bound = computed_once(self._asks, score_loss_max, self._renderer)
            yield self._made("oracle", 0, bound, score_loss_max=score_loss_max)
        case, first = PROMISED_CASES[-1], list(dict.fromkeys(self._asks))
        found = self._sent(first, case)
        yield msgspec.structs.replace(
            self._row(case, found),
            reuse=True,
            computed_per_answer=found.computed_tokens / len(self._asks),
        )

    def _sent(self, asks: Sequence[Ask], case: OrderCase) -> CachedShare:
        return share_of(list(send_in_order(asks, case, self._size, self._renderer)))

    def _row(self, case: OrderCase, found: CachedShare) -> OrderRow:
        row = self._made(case.order, case.backlog, found, score_loss_max=case.score_loss_max)
        return msgspec.structs.replace(row, overtaken_max=case.overtaken_max)

    def _made(
        self, order: str, backlog: int, found: CachedShare, *, score_loss_max: float | None = None
    ) -> OrderRow:
        return OrderRow(
            stream=self._stream,
            template=self._template,
            order=order,
            backlog=backlog,
            hit_share=found.share,
            computed_per_answer=found.computed_tokens / found.prompts,
            score_loss_max=score_loss_max,
        )
