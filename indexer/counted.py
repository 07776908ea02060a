"""Counts what a fold of the vectors has in memory, and takes a state of it to be saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from carpool.corpus.fold import Fold
from carpool.corpus.follower import Received
from schemas.document import Base, Position


class Cut(NamedTuple):
    """A whole state of the fold: where it is, and what is fresh or hidden since the base.

    `requests`: those before this offset of `rag.bases.v1` were heard before. `latest`: where the
    record of each fresh document is, by digest. `hidden`: digests of documents of the base that
    were replaced or deleted.
    """

    requests: int
    position: Position
    vectors: Position
    topic: str
    latest: dict[bytes, tuple[int, int]]
    hidden: frozenset[bytes]


class Counted:
    """What a fold would have in memory; implements `Folded`."""

    def __init__(self, fold: Fold, base: Base) -> None:
        self.fold = fold
        self._latest: dict[bytes, tuple[int, int]] = {}
        self._hidden: set[bytes] = set()
        self._next = dict(base.vectors)
        self._topic = base.topic
        self._asked: int | None = None
        self._cut: Cut | None = None

    def ask(self, requests: int) -> None:
        """Asks for a cut: for `requests`, see `Cut`."""
        self._cut = None
        self._asked = requests

    def taken(self) -> Cut | None:
        """Returns the cut that was asked for, when it is made."""
        return self._cut

    def add(self, records: Sequence[Received]) -> bool:
        """See `Folded`: there is always room."""
        for each in records:
            source, revision = each.source, each.revision
            self._next[source.partition] = source.offset + 1
            self._topic = each.record.topic
            if self.fold.repeats(source.partition, revision.offset):
                continue
            if self.fold.step(revision).hides_base:
                self._hidden.add(revision.key)
            self._latest.pop(revision.key, None)
            if revision.passages:
                self._latest[revision.key] = (source.partition, source.offset)
        return True

    def publish(self) -> bool:
        """Makes the cut that is wanted; see `Folded`."""
        if self.fold.is_behind:
            return False
        if self._asked is not None:
            requests, self._asked = self._asked, None
            self._cut = Cut(
                requests,
                self.fold.position,
                dict(self._next),
                self._topic,
                dict(self._latest),
                frozenset(self._hidden),
            )
        return True
