"""Poison records for the topics of queries, each with the reason of its rejection.

A service must continue after each one. It writes the raw bytes to the dead letters, and a `failed`
answer.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass

from schemas.errors import Reason
from schemas.query import QUERY_BYTES_MAX
from schemas.record import Headers

TOO_LARGE_BYTES = 3 * QUERY_BYTES_MAX
"""More than a query may have, and less than the limit of its topic."""


@dataclass(frozen=True, kw_only=True)
class Poison:
    """A record. `query_id`: the id of the `failed` answer; None: one made of the record."""

    value: bytes | None
    reason: Reason
    query_id: str | None = None
    headers: Headers = ()


def poison_records() -> tuple[Poison, ...]:
    """Returns records that every index refuses. Their ids begin with `poison-`."""
    number = encoded_vector([1.0])
    return (
        Poison(reason="empty", value=b""),
        _by_header("poison-1", "empty", None),
        Poison(reason="not_json", value=b'{"query_id": "poison-2", "text": '),
        _by_header("poison-3", "not_json", b"no json", ("content-type", b"application/json")),
        Poison(reason="invalid_utf8", value=b"caf\xe9 au lait?"),
        Poison(
            reason="invalid_utf8",
            value=b'{"query_id": "poison-4", "text": "caf\xe9"}',
            query_id="poison-4",
        ),
        query("poison-15", "not_json", text="\ud800"),
        query("poison-5", "wrong_type", text=["a", "list"]),
        query("poison-6", "wrong_type", text="x", top_k="three"),
        query("poison-7", "missing_field"),
        query("poison-8", "missing_field", vector=number),
        query("poison-9", "unsupported", text="x", filter={"lang": "en"}),
        query("poison-10", "invalid_value", text="x", nprobe=4, recall_target=0.9),
        query("poison-11", "unsupported", text="x", tenant="acme"),
        query(
            "poison-12",
            "unknown_version",
            headers=(("ce_dataschema", b"urn:carpool:query:99"),),
            text="x",
        ),
        query("poison-13", "unknown_version", headers=(("ce_specversion", b"9.9"),), text="x"),
        _by_header("poison-14", "too_large", bytes(TOO_LARGE_BYTES)),
        Poison(reason="too_large", value=bytes(TOO_LARGE_BYTES)),
    )


def poison_for(fingerprint: str, dimension: int) -> tuple[Poison, ...]:
    """Returns readable records that an index of these vectors refuses."""
    ones = encoded_vector([1.0] * dimension)
    return (
        query(
            "poison-20",
            "wrong_dimension",
            vector=encoded_vector([1.0] * 3),
            embedding_model=fingerprint,
        ),
        query("poison-21", "wrong_model", vector=ones, embedding_model="another"),
        query(
            "poison-22",
            "invalid_value",
            vector=encoded_vector([0.0] * dimension),
            embedding_model=fingerprint,
        ),
        query("poison-23", "invalid_value", text="x", nprobe=60_000),
    )


def query(query_id: str, reason: Reason, *, headers: Headers = (), **fields: object) -> Poison:
    """Returns a JSON object with this id and these fields."""
    value = json.dumps({"query_id": query_id, **fields}).encode()
    return Poison(value=value, reason=reason, query_id=query_id, headers=headers)


def encoded_vector(values: list[float]) -> str:
    """Returns a vector as encoded in JSON."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def _by_header(
    query_id: str, reason: Reason, value: bytes | None, *more: tuple[str, bytes]
) -> Poison:
    return Poison(
        value=value, reason=reason, query_id=query_id, headers=(("ce_id", query_id.encode()), *more)
    )
