"""Which texts are embedded together next: partitions in turns, documents in their order. Pure.

A document waits for those before it in its partition, whose results are written earlier anyway, and
for a few passes at most behind a large one of another partition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable


class WaitingDocuments:
    """Documents by number, in the lines of their partitions. Not thread-safe.

    One is prepared first, which tells how many texts it has. Each call costs time for the documents
    that it returns, and `forget` for all.
    """

    def __init__(self, texts_max: int) -> None:
        """`texts_max`: of a pass."""
        self._texts_max = texts_max
        self._new: OrderedDict[Hashable, list[int]] = OrderedDict()  # not prepared, by partition
        self._texts: OrderedDict[Hashable, dict[int, int]] = OrderedDict()  # left of each

    def __bool__(self) -> bool:
        """Whether any document waits."""
        return bool(self._new or self._texts)

    def add(self, partition: Hashable, document: int) -> None:
        """Adds a document at the end of the line of its partition."""
        self._new.setdefault(partition, []).append(document)

    def to_prepare(self) -> list[int]:
        """Removes and returns the documents that are prepared before the next pass.

        At most a pass of each partition, unless that has one prepared already.
        """
        found = []
        for partition, line in list(self._new.items()):
            if not self._texts.get(partition):
                found += line[: self._texts_max]
                del line[: self._texts_max]
            if not line:
                del self._new[partition]
        return found

    def prepared(self, partition: Hashable, document: int, texts: int) -> None:
        """Notes that a document has texts to embed, after those before it in its partition."""
        self._texts.setdefault(partition, {})[document] = texts

    def next_pass(self) -> dict[int, int]:
        """Removes and returns how many of its next texts each document has in the next pass.

        Each partition has the same share, as far as it has texts.
        """
        taken: dict[int, int] = {}
        for _ in range(self._texts_max):
            if not self._texts:
                break
            partition, line = self._texts.popitem(last=False)
            document = next(iter(line))
            taken[document] = taken.get(document, 0) + 1
            line[document] -= 1
            if not line[document]:
                del line[document]
            if line:
                self._texts[partition] = line  # behind the others
        return taken

    def forget(self, documents: Collection[int]) -> None:
        """Forgets documents that were revoked."""
        for partition, line in list(self._new.items()):
            self._new[partition] = [each for each in line if each not in documents]
        for partition, texts in list(self._texts.items()):
            left = {each: count for each, count in texts.items() if each not in documents}
            self._texts[partition] = left
            if not left:
                del self._texts[partition]
