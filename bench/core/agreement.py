"""Compares the ids of a search with those of an exact search. Equal scores have no order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

TOLERANCE = 1e-5
"""Scores nearer than this are equal: the order of float32 sums changes the last bits."""

EXAMPLES_MAX = 5

Verdict = Literal["same", "tied", "different"]


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found for one query, best first: ids and their scores."""

    ids: tuple[str, ...]
    scores: tuple[float, ...]


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Queries by verdict; `examples` shows the first few that differ, in words."""

    same: int
    tied: int
    different: int
    examples: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing differs but equal scores."""
        return self.different == 0


def compare(found: Ranking, expected: Ranking, true_scores: Sequence[float]) -> tuple[Verdict, str]:
    """Returns the verdict on one query, and why where it is `different`.

    `true_scores` are those of `found.ids`, computed from the vectors; the scores of `found` are
    checked against them. `same`: equal ids at every rank. `tied`: where ids differ, the true score
    is within `TOLERANCE` of the expected one at that rank. Anything else is `different`: fewer or
    more hits, an id twice, a score that is wrong by `TOLERANCE` or more.
    """
    if len(found.ids) != len(expected.ids):
        return "different", f"{len(found.ids)} hits instead of {len(expected.ids)}"
    if len(set(found.ids)) != len(found.ids):
        return "different", f"an id is found twice: {found.ids}"
    for rank, (said, true) in enumerate(zip(found.scores, true_scores, strict=True), start=1):
        if not abs(said - true) < TOLERANCE:  # also for NaN, the true score of an unknown id
            return (
                "different",
                f"rank {rank}: {found.ids[rank - 1]} has score {true:.7f}, and {said:.7f} was said",
            )
    is_same = True
    for rank, (ours, theirs) in enumerate(zip(found.ids, expected.ids, strict=True)):
        if ours == theirs:
            continue
        is_same = False
        gap = abs(true_scores[rank] - expected.scores[rank])
        if not gap < TOLERANCE:
            return (
                "different",
                f"rank {rank + 1}: {ours} instead of {theirs}, scores {gap:.2e} apart",
            )
    return ("same" if is_same else "tied"), ""


def agreement(verdicts: Iterable[tuple[str, Verdict, str]]) -> Agreement:
    """Returns the count of each verdict. `verdicts`: (query id, verdict, why) of every query."""
    counts = {"same": 0, "tied": 0, "different": 0}
    examples: list[str] = []
    for query_id, verdict, why in verdicts:
        counts[verdict] += 1
        if verdict == "different" and len(examples) < EXAMPLES_MAX:
            examples.append(f"{query_id}: {why}")
    return Agreement(
        same=counts["same"],
        tied=counts["tied"],
        different=counts["different"],
        examples=tuple(examples),
    )
