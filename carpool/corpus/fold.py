"""The fold of the corpus: what a record of `rag.vectors.v1` changes (ADR 0031). Pure.

The state after any records is that of `fold(base, records)`: of each document the passages of its
last revision, and none where that was deleted or refused. A position says up to which document of
each partition this is true. A log that was compacted lacks revisions, so between two of its records
the state may be one that never was: it is *behind* then, and nobody may see it.

Fresh passages are numbered in the order in which they come; those of the base by its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

NOTHING = range(0)
OLD_MS = 30 * 60 * 1_000
"""A record that was appended so long ago may have lost its neighbours to a compaction.

Half of what `rag.vectors.v1` waits before it is compacted, so clocks may differ by the other half.
"""


class Revision(NamedTuple):
    """A record of `rag.vectors.v1`: the revision of the document `key`, a digest.

    `offset`: of the document in its partition of `rag.documents.v1`. `passages`: 0 where it was
    deleted or refused. `size_bytes`: what these take in memory. `is_behind`: the indexer was, see
    the module. `is_old`: the record itself may have lost its neighbours.
    """

    partition: int
    offset: int
    key: bytes
    passages: int = 0
    size_bytes: int = 0
    is_behind: bool = False
    is_old: bool = False


class Step(NamedTuple):
    """What a revision does: passages that are hidden, of the base and fresh ones, and new ones."""

    hides_base: range = NOTHING
    hides: range = NOTHING
    adds: range = NOTHING


class BaseDocuments(Protocol):
    """The documents of a base."""

    def passages_of(self, key: bytes) -> range:
        """Returns the numbers of the passages of a document, a digest; none if it has none."""
        ...


class Fold:
    """The state of a fold. Not thread-safe."""

    def __init__(self, base: BaseDocuments, position: Mapping[int, int]) -> None:
        """`position`: what the base has, the highest offset of each partition."""
        self._base = base
        self._position = dict(position)
        self._behind: set[int] = set()  # partitions
        self._indexer_behind: set[int] = set()
        self._fresh: dict[bytes, tuple[range, int]] = {}  # passages and their bytes, by document
        self._next = 0
        self.used_bytes = self.hidden_bytes = 0
        """Of all fresh passages, and of those that are hidden, since the last `renumber`."""

    @property
    def position(self) -> dict[int, int]:
        """The highest offset of each partition that was folded."""
        return dict(self._position)

    @property
    def documents(self) -> int:
        """The number of documents that have fresh passages."""
        return len(self._fresh)

    @property
    def is_behind(self) -> bool:
        """Whether the state may be one that never was: no search may see it."""
        return bool(self._behind or self._indexer_behind)

    def fresh_passages_of(self, key: bytes) -> range:
        """Returns the fresh passages of a document, a digest; none if it has none."""
        return self._fresh.get(key, (NOTHING, 0))[0]

    def begin(self, partition: int) -> None:
        """A partition is read from here on: it is behind until `reached_end`, or a young record."""
        self._behind.add(partition)

    def reached_end(self, partition: int) -> None:
        """All records of a partition were folded that it had when it was last looked at."""
        self._behind.discard(partition)

    def repeats(self, partition: int, offset: int) -> bool:
        """Returns whether a record repeats an older one."""
        return offset < self._position.get(partition, -1)

    def step(self, revision: Revision) -> Step:
        """Folds a record, and returns what it changes: nothing if it repeats an older one."""
        partition = revision.partition
        if self.repeats(partition, revision.offset):
            return Step()
        self._position[partition] = revision.offset
        self._note(self._behind, partition, is_behind=revision.is_old)
        self._note(self._indexer_behind, partition, is_behind=revision.is_behind)
        hides, hidden_bytes = self._fresh.pop(revision.key, (NOTHING, 0))
        self.hidden_bytes += hidden_bytes
        adds = range(self._next, self._next + revision.passages)
        if revision.passages:
            self._next = adds.stop
            self._fresh[revision.key] = (adds, revision.size_bytes)
            self.used_bytes += revision.size_bytes
        return Step(self._base.passages_of(revision.key), hides, adds)

    def renumber(self) -> list[range]:
        """Numbers the visible passages anew, in their order; returns what numbers they had.

        Only they count as used from then on.
        """
        kept = sorted(self._fresh.items(), key=lambda item: item[1][0].start)
        self._next = 0
        for key, (passages, size_bytes) in kept:
            self._fresh[key] = (range(self._next, self._next + len(passages)), size_bytes)
            self._next += len(passages)
        self.used_bytes -= self.hidden_bytes
        self.hidden_bytes = 0
        return [passages for _, (passages, _) in kept]

    @staticmethod
    def _note(partitions: set[int], partition: int, *, is_behind: bool) -> None:
        if is_behind:
            partitions.add(partition)
        else:
            partitions.discard(partition)
