"""The records of `rag.files.v1` and `rag.files.pieces.v1`: files of those who ask by HTTP."""

from __future__ import annotations

from typing import Literal

from schemas.record import Identifier, NonNegative, Record

Purpose = Literal["batch", "batch_output"]
"""`batch`: questions; `batch_output`: the answers, or the errors, of a batch."""


class StoredFile(Record, frozen=True, kw_only=True):
    """A file whose pieces are all in `rag.files.pieces.v1`. A null record deletes it.

    `owner`: the only one who may read it. Its pieces are the records with the key `upload` of
    `partition`, from the offset `start` to below `end`. `created_ms`: epoch milliseconds.
    """

    file_id: Identifier
    owner: Identifier
    name: str
    purpose: Purpose
    size_bytes: NonNegative
    sha256: str
    upload: Identifier
    partition: NonNegative = 0
    start: NonNegative = 0
    end: NonNegative = 0
    created_ms: NonNegative


class FilePiece(Record, frozen=True, kw_only=True):
    """A part of a file; the order of the parts is that of the log. `data`: in base64."""

    upload: Identifier
    data: bytes
