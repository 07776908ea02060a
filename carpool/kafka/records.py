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

    `host_lead_us`: that of the clock (`carpool.clock`) when a service took the record in.
    `unreadable`: why the batch that ends with this record could not be unpacked, in words. Then the
    record stands for the whole batch, and has no key, value, headers or timestamp.
    """

    source: Source
    key: bytes | None
    value: bytes | None
    headers: Headers
    received_us: int
    unreadable: str = ""
    host_lead_us: int = 0

    @property
    def written_us(self) -> int:
        """The time stamp, by the clock of this process; the arrival of a record without one."""
        stamp_ms = self.source.timestamp_ms
        return stamp_ms * 1_000 - self.host_lead_us if stamp_ms else self.received_us

    @property
    def size_bytes(self) -> int:
        """Bytes of key, value and headers, as credit counts them."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A record to write. `partition` None: chosen by the key, with Java's partitioner.

    `value` None deletes the key where its topic is compacted.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
