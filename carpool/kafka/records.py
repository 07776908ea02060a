"""Records: their place, a record that was read, a record to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from schemas.record import Headers, Source


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A record that was read. `received_us`: epoch microseconds when it was polled.

    `unreadable`: why the batch that ends with this record could not be unpacked, in words. Then the
    record stands for the whole batch, and has no key, value, headers or timestamp.
    """

    source: Source
    key: bytes | None
    value: bytes | None
    headers: Headers
    received_us: int
    unreadable: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of key, value and headers, as credit counts them."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A record to write. `partition` None: chosen by the key, with Java's partitioner."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers = ()
    partition: int | None = None
