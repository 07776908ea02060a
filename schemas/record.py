"""The base of every record, and the parts that several records share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NewType

import msgspec

Headers = tuple[tuple[str, bytes | None], ...]
"""Kafka headers in order; names may repeat and a value may be null. In JSON a value is base64."""

TRACEPARENT = "traceparent"
"""The header of the W3C trace context."""

Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_INT_MAX = 10**18 - 1
Integer = Annotated[int, msgspec.Meta(ge=-_INT_MAX, le=_INT_MAX)]
NonNegative = Annotated[int, msgspec.Meta(ge=0, le=_INT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Real = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
"""Every number is bounded: a whole one has 18 digits, as in headers, and sums of counts fit it."""
Times = dict[str, Integer]
"""Microseconds by stage: below 0 where a clock was set back."""
ClusterId = NewType("ClusterId", Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)])


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of records. Unknown fields are ignored; fields at their default are left out."""


class Source(Record, frozen=True, kw_only=True):
    """The partition and offset of a record: the name of one input record, which is acknowledged."""

    topic: Annotated[str, msgspec.Meta(min_length=1)]
    partition: NonNegative
    offset: NonNegative
    timestamp_ms: Integer = 0

    @property
    def place(self) -> str:
        """The record as messages name it: `topic/partition/offset`."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def record(self) -> str:
        """The record as ids name it: another one is at its place if its topic is made again."""
        return f"{self.place}/{self.timestamp_ms}"


def well_formed(text: object) -> str:
    """Returns foreign text with half surrogate pairs replaced by U+FFFD; "" for what is no text."""
    if not isinstance(text, str):
        return ""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def with_traceparent(headers: Headers, traceparent: str) -> Headers:
    """Returns `headers` with this `traceparent` instead of any other."""
    others = tuple(pair for pair in headers if pair[0] != TRACEPARENT)
    return (*others, (TRACEPARENT, traceparent.encode()))


def header(headers: Iterable[tuple[str, bytes | None]], name: str) -> bytes | None:
    """Returns the last value of the header `name` (Kafka's rule for repeated names), or None."""
    return dict(headers).get(name)
