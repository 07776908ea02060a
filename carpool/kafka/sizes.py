"""The size of a record as brokers compare it with `max.message.bytes` of its topic."""

from __future__ import annotations

from schemas.record import Headers

BATCH_BYTES = 61
"""The header of a record batch (Kafka protocol, record batch version 2)."""


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Returns the size of an uncompressed batch with this one record, exact for our producers.

    Record batch version 2: lengths are zig-zag varints; attributes, time and offset are one byte
    each in a batch of one record.
    """
    body = 3 + _field(key) + _field(value) + _varint(len(headers))
    for name, content in headers:
        body += _field(name.encode(errors="surrogatepass")) + _field(content)
    return BATCH_BYTES + _varint(body) + body


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    return max(1, -(-(2 * number).bit_length() // 7))
