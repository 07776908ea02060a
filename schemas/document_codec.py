"""Reads the documents that applications, connectors and Carpool's commands publish."""

from __future__ import annotations

from array import array
from math import isfinite

from schemas.codec import (
    BYTE_ORDER_MARK,
    JSON_TYPE,
    TEXT_TYPE,
    check_envelope,
    decode_json,
    text_of,
    utf8,
)
from schemas.document import Document, DocumentKey, parse_key
from schemas.errors import RecordError
from schemas.headers import CONTENT_TYPE
from schemas.record import Headers


def decode_document(
    key: bytes | None, value: bytes | None, headers: Headers
) -> tuple[DocumentKey, Document | None]:
    """Returns the document of a record of `rag.documents.v1`, checked; None: it is deleted.

    The value is a JSON object, in an envelope of CloudEvents in binary mode or in none, or a plain
    text. Raises `RecordError` that says what is wrong.
    """
    identity = parse_key(key)
    if value is None:
        return identity, None
    check_envelope(Document, headers)
    value = value.removeprefix(BYTE_ORDER_MARK)
    like = JSON_TYPE if value.lstrip()[:1] == b"{" else TEXT_TYPE
    content_type = (text_of(headers, CONTENT_TYPE) or like).split(";")[0].strip().lower()
    if content_type == TEXT_TYPE:
        document = Document(text=utf8(value))
    elif content_type == JSON_TYPE:
        document = decode_json(Document, value)
    else:
        raise RecordError(
            "bad_envelope",
            f"content-type {content_type!r} is not known; use {JSON_TYPE} or {TEXT_TYPE}",
        )
    _check(identity, document)
    return identity, document


def _check(key: DocumentKey, document: Document) -> None:
    for field, ours in (("owner", key.owner), ("id", key.id)):
        theirs = getattr(document, field)
        if theirs is not None and theirs != ours:
            raise RecordError(
                "invalid_value",
                f"{field} is {theirs[:80]!r}, and the key of the record says {ours[:80]!r}: the "
                "key is the identity of a document",
                field=f"$.{field}",
            )
    if (document.text is None) == (not document.passages):
        raise RecordError(
            "missing_field", "a document needs either `text` or `passages`", field="$.passages"
        )
    if document.text is not None and not document.text.strip():
        raise RecordError(
            "empty", "its text is empty; to delete it, publish its key with null", field="$.text"
        )
    for number, passage in enumerate(document.passages):
        at = f"$.passages[{number}]"
        if not passage.text.strip():
            raise RecordError("empty", f"the text of passage {number} is empty", field=f"{at}.text")
        if (passage.vector is None) != (passage.embedding_model is None):
            raise RecordError(
                "missing_field",
                f"passage {number} has only one of `vector` and `embedding_model`, the fingerprint "
                "of the model that made it (`carpool index stats`)",
                field=f"{at}.embedding_model",
            )
        if passage.vector is not None and (wrong := _wrong_with(passage.vector)):
            raise RecordError(
                "invalid_value", f"the vector of passage {number} {wrong}", field=f"{at}.vector"
            )


def _wrong_with(vector: bytes) -> str:
    """Returns why a vector cannot be used, whatever the model; "" where it can."""
    numbers = array("f")
    if len(vector) % numbers.itemsize:
        return f"has {len(vector)} bytes, and a number of float32 has 4"
    numbers.frombytes(vector)
    if not all(map(isfinite, numbers)):
        return "has a number that is not finite: it has no direction"
    return "" if any(numbers) else "is zero: it has no direction"
