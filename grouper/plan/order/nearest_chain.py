"""Order by overlap: next is the group that shares most with the last ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FADE = 0.9
"""The factor on a query's warmth for each later query. 0: a chain of nearest neighbours; 0.9: about
the last ten queries (`docs/grouping.md`).
"""

NEVER = -np.inf


class NearestChain:
    """A chain: each query is as similar as possible to the queries just before it.

    A query's warmth is the sum of its similarity (CaGR-RAG, Eq. 2) to all earlier queries, each
    times `FADE` for every query since: an estimate of how much of its clusters is still cached. The
    warmest query goes next, then the warmest of its group until the group has left. The first of a
    window is warmed by the end of the window before. Ties go by arrival. Useless for the
    cluster-major searcher, which has its own order. O(n²) for n queries.
    """

    name: Literal["nearest_chain"] = "nearest_chain"

    def order(
        self,
        groups: tuple[tuple[int, ...], ...],
        similarity: NDArray[np.float64],
        before: NDArray[np.float64],
        deadlines: Sequence[int],
    ) -> tuple[tuple[int, ...], ...]:
        """See `grouper.plan.order.GroupOrder`."""
        chain = _Chain(similarity, before, deadlines)
        arrays = [np.array(members) for members in groups]
        group_of = {
            member: array
            for members, array in zip(groups, arrays, strict=True)
            for member in members
        }
        everybody = np.arange(len(similarity))
        ordered = []
        while (chosen := chain.warmest(everybody)) is not None:
            run = []
            members = group_of[chosen]
            following: int | None = chosen
            while following is not None:
                chain.place(following)
                run.append(following)
                following = chain.warmest(members)
            ordered.append(tuple(run))
        return tuple(ordered)


class _Chain:
    """Who is how warm, and who may leave now."""

    def __init__(
        self, similarity: NDArray[np.float64], before: NDArray[np.float64], deadlines: Sequence[int]
    ) -> None:
        self._similarity = similarity
        self._warmth = np.zeros(len(similarity))
        for row in before:
            self._warm(row)
        self._later = iter(deadlines)
        self._limit = next(self._later, None)
        # Added to warmth: 0 for who may leave, minus infinity for who has left or is held back by a
        # deadline.
        self._bar = np.zeros(len(similarity))
        if self._limit is not None:
            self._bar[self._limit + 1 :] = NEVER

    def warmest(self, members: NDArray[np.intp]) -> int | None:
        """The warmest of `members` that may leave; None where none may."""
        scores = self._warmth[members] + self._bar[members]
        best = int(scores.argmax()) if len(scores) else None
        return int(members[best]) if best is not None and scores[best] != NEVER else None

    def place(self, member: int) -> None:
        """Lets `member` leave."""
        self._bar[member] = NEVER
        self._warm(self._similarity[member])
        if member == self._limit:
            self._limit = next(self._later, None)
            end = len(self._bar) if self._limit is None else self._limit + 1
            self._bar[member + 1 : end] = 0.0  # none of these has left: it held them back

    def _warm(self, row: NDArray[np.float64]) -> None:
        self._warmth *= FADE
        self._warmth += row
