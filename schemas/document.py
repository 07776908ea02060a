"""The records of the corpus: `rag.documents.v1`, `rag.vectors.v1` and `rag.bases.v1`."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.errors import RecordError
from schemas.record import Count, Identifier, NonNegative, Record

PASSAGES_MAX = 512
"""Passages of a document at most."""
KEY_BYTES_MAX = 1_024
Position = dict[Annotated[int, msgspec.Meta(ge=0, le=10**6)], NonNegative]
"""A place in `rag.documents.v1`: of each partition the highest offset that was folded."""


class DocumentKey(NamedTuple):
    """The identity of a document: the key of its records. `owner` is "" for a plain id."""

    owner: str
    id: str

    def encode(self) -> bytes:
        """Returns the key of its records: `["owner","id"]` as JSON without spaces, or the id."""
        return msgspec.json.encode([self.owner, self.id]) if self.owner else self.id.encode()

    @property
    def shown(self) -> str:
        """The document as hits and citations name it."""
        return f"{self.owner}/{self.id}" if self.owner else self.id

    def passage(self, number: int, count: int) -> str:
        """Returns the `doc_id` of the passage `number`, from 0: the document's, if it has one."""
        return f"{self.shown}#{number + 1}" if count > 1 else self.shown


def parse_key(key: bytes | None) -> DocumentKey:
    """Returns the document of a key. Raises `RecordError`: two keys never name one document."""
    if not key:
        raise RecordError("missing_field", "the record has no key: it is the id of the document")
    if len(key) > KEY_BYTES_MAX:
        raise RecordError("too_large", f"the key has {len(key)} bytes; at most {KEY_BYTES_MAX}")
    try:
        text = key.decode()
    except UnicodeDecodeError as error:
        raise RecordError("invalid_utf8", f"the key is not UTF-8: {error.reason}") from None
    try:
        parts = msgspec.json.decode(key, type=tuple[str, str])
    except (msgspec.DecodeError, RecursionError):
        parts = ("", text)
    found = DocumentKey(*parts)
    if not found.id.strip() or any(ord(character) < 32 for character in found.owner + found.id):
        raise RecordError(
            "invalid_value", "the id of a document is text without control characters"
        )
    if found.encode() != key:
        wanted = found.encode().decode()
        raise RecordError("invalid_value", f"the key {text:.80} must be written as {wanted:.80}")
    return found


class DocumentPassage(Record, frozen=True, kw_only=True):
    """A passage of a document. `start`, `end`: its characters in the document.

    `vector` is little-endian float32, base64 in JSON, and comes with `embedding_model`, the
    fingerprint of the model that made it; without it the indexer embeds title and text.
    """

    text: Annotated[str, msgspec.Meta(min_length=1)]
    title: str | None = None
    start: NonNegative | None = None
    end: NonNegative | None = None
    vector: bytes | None = None
    embedding_model: Identifier | None = None


class Document(Record, frozen=True, kw_only=True):
    """One revision of a document, whole: it replaces the earlier one. A null value deletes.

    Its key is its identity, and `owner` and `id`, if there are any, say the same. Either `passages`
    are given, at most `PASSAGES_MAX`, or a `text`, which the indexer cuts into passages. A passage
    without a title has that of the document. `metadata` is that of every passage: the fields that
    fit into 2,048 bytes, `url` first.
    """

    owner: str | None = None
    id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None
    text: str | None = None
    passages: Annotated[tuple[DocumentPassage, ...], msgspec.Meta(max_length=PASSAGES_MAX)] = ()


class IndexedPassage(Record, frozen=True, kw_only=True):
    """A passage of `DocumentVectors`; a title that is absent is that of the document."""

    text: str
    title: str | None = None
    start: NonNegative | None = None
    end: NonNegative | None = None


class DocumentVectors(Record, frozen=True, kw_only=True):
    """What the indexer makes of one record of `rag.documents.v1`, which was at `offset`.

    `deleted`, and `refused`, which says why, leave nothing of the document. Else it has `passages`
    and their `vectors`: (n, dim) little-endian float16, L2-normalised, base64 in JSON, of
    `embedding_model`. `topic`: the id of `rag.documents.v1`, which another topic of that name does
    not have; "" from brokers without such ids. `is_behind`: documents of the partition may have
    changed between this record and the one before it, and later records say so.
    """

    offset: NonNegative
    topic: str = ""
    is_behind: bool = False
    deleted: bool = False
    refused: str | None = None
    embedding_model: Identifier | None = None
    title: str = ""
    metadata: dict[str, Any] | None = None
    passages: tuple[IndexedPassage, ...] = ()
    vectors: bytes = b""


class Corpus(Record, frozen=True, kw_only=True):
    """What was searched: a base, and up to which documents the rest was folded over it.

    `base`: its name. The documents were those of `position`: of each partition the highest offset
    that was folded.
    """

    base: Identifier
    position: Position = msgspec.field(default_factory=dict)


class BaseWanted(Record, frozen=True, kw_only=True):
    """Somebody asks for a base (`carpool corpus save`), of what is folded when it is heard.

    `retrain`: it gets new centroids.
    """

    asked_ms: NonNegative
    retrain: bool = False


class Base(Record, frozen=True, kw_only=True):
    """A base that was saved: `fold(base, records)` up to `position`, in `folder` of its indexer.

    `vectors`: the next offset to read of each partition of `rag.vectors.v1`. `topic` and
    `vectors_topic`: the ids of both topics. It counts only if its `predecessor` is the current base
    (None: there was none). `rows`: its passages. `saved_ms`: epoch milliseconds, for people only.
    `requests`: those before this offset of `rag.bases.v1` were heard before its state was taken.
    """

    name: Identifier
    index_version: Identifier
    folder: str
    predecessor: Identifier | None = None
    position: Position
    vectors: Position
    topic: str = ""
    vectors_topic: str = ""
    requests: NonNegative = 0
    rows: Count = 0
    saved_ms: NonNegative = 0
