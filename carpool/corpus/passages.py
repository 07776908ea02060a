"""What a record of `rag.vectors.v1` has, as an index stores it, and what it takes in memory."""

from __future__ import annotations

import msgspec

from carpool.disk.documents import Passage
from schemas.document import DocumentVectors, parse_key

ROW_BYTES = 80
"""What a fresh row takes in memory in addition to its code, vector and passage."""


def passages_of(key: bytes, record: DocumentVectors) -> list[Passage]:
    """Returns the passages of a document; none where it was deleted or refused.

    Raises `RecordError` for passages under a key of no document.
    """
    if not record.passages:  # a refused record may have a key of no document
        return []
    named, count = parse_key(key), len(record.passages)
    return [
        Passage(
            named.passage(number, count),
            record.title if passage.title is None else passage.title,
            passage.text,
            record.metadata,
        )
        for number, passage in enumerate(record.passages)
    ]


def size_bytes_of(key: bytes, record: DocumentVectors) -> int:
    """Returns about what a document takes in memory: vectors of 2 bytes a number, codes, passages.

    Each passage has the id, the title and the metadata of the document.
    """
    shared = ROW_BYTES + len(key) + len(msgspec.msgpack.encode(record.metadata))
    texts = "".join(
        (record.title if each.title is None else each.title) + each.text for each in record.passages
    )
    return len(record.vectors) * 5 // 4 + shared * len(record.passages) + len(texts.encode())
