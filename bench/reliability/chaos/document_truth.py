"""What the corpus was at any position: by the index, and the log of documents. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bench.data.made_up import DIMENSION
from carpool.arrays import Float32
from carpool.disk.documents import Passage
from carpool.embedding.hashing import HashingEmbedder
from carpool.kafka.records import Message
from indexer.corpus import passage_text
from producers.documents import Put
from schemas.document import Corpus, DocumentKey, Position
from schemas.document_codec import decode_document
from schemas.hit import Hit
from schemas.record import ClusterId

OF_INDEX = -1
"""The offset of what the index has from its beginning."""


class Revision(NamedTuple):
    """A document from `offset` on. `hits`: its passages; none where it is deleted or refused.

    `row`: that of its first passage among all vectors.
    """

    offset: int
    hits: tuple[Hit, ...] = ()
    row: int = 0
    is_refused: bool = False


class Acknowledged(NamedTuple):
    """A change that the brokers have. `is_delete`: it has no revision."""

    key: DocumentKey
    put: Put
    is_delete: bool


class DocumentTruth:
    """Takes the records of `rag.documents.v1`; those of a partition in their order."""

    def __init__(self, index: Mapping[str, Hit]) -> None:
        """`index`: its passages, each a document, by id."""
        self._embedder = HashingEmbedder(DIMENSION)
        self._vectors = self._embedder.encode([hit.text for hit in index.values()])
        self._texts = [hit.text for hit in index.values()]  # these without their titles
        self._revisions = {
            name: [Revision(OF_INDEX, (hit,), row)] for row, (name, hit) in enumerate(index.items())
        }
        self._partitions: dict[str, int] = {}
        self.places: dict[tuple[int, int], tuple[str, Revision]] = {}
        """Each record by partition and offset: its document, and what it made of it."""
        self.ends: Position = {}
        """Of each partition the last offset."""

    def take(self, record: Message) -> None:
        """Takes the next record."""
        at, hits = record.source, list[Hit]()
        key, document = decode_document(record.key, record.value, record.headers)
        passages = () if document is None else document.passages
        is_refused = any(each.vector is not None for each in passages)
        for number, each in enumerate(() if is_refused else passages):
            assert document is not None
            hits.append(
                Hit(
                    doc_id=key.passage(number, len(passages)),
                    score=0.0,
                    cluster=ClusterId(0),
                    title=document.title or "",
                    text=each.text,
                    metadata=document.metadata,
                )
            )
        made = Revision(at.offset, tuple(hits), len(self._texts), is_refused)
        self._texts += [passage_text(Passage("", each.title, each.text)) for each in hits]
        self._revisions.setdefault(key.shown, [Revision(OF_INDEX)]).append(made)
        self._partitions[key.shown] = at.partition
        self.places[at.partition, at.offset] = key.shown, made
        self.ends[at.partition] = at.offset

    def has(self, change: Acknowledged) -> bool:
        """Whether a change is where the brokers said."""
        place = change.put.partition, change.put.offset
        name, made = self.places.get(place, ("", Revision(OF_INDEX)))
        return name == change.key.shown and not (change.is_delete and made.hits)

    def since(self, name: str, position: Position) -> list[Revision]:
        """Returns the revision of a document that is the newest at a position, and later ones."""
        revisions = self._revisions.get(name, [Revision(OF_INDEX)])
        reached = position.get(self._partitions.get(name, 0), OF_INDEX)
        return revisions[bisect_right(revisions, reached, key=lambda each: each.offset) - 1 :]

    def at(self, position: Position) -> dict[str, tuple[Hit, int]]:
        """Returns every passage at a position by its id, with its row among all vectors."""
        newest = [self.since(name, position)[0] for name in self._revisions]
        return {
            hit.doc_id: (hit, each.row + number)
            for each in newest
            for number, hit in enumerate(each.hits)
        }

    def scores(self, rows: Sequence[int], vector: Float32) -> Float32:
        """Returns the scores of rows: (n,) float32."""
        if missing := self._texts[len(self._vectors) :]:
            self._vectors = np.concatenate([self._vectors, self._embedder.encode(missing)])
        scores: Float32 = self._vectors[rows] @ vector
        return scores

    def embedded(self, text: str) -> Float32:
        """Returns the vector of a question."""
        vector: Float32 = self._embedder.encode([text])[0]
        return vector


def position_of(corpus: Corpus | None) -> Position:
    """Returns the position of what was searched: of an index alone that of no document."""
    return {} if corpus is None else corpus.position
