"""A header name that is not UTF-8 is refused with a reason."""

from __future__ import annotations

import pytest

from carpool.kafka.raw_records import headers_of
from schemas.codec import decode, decode_query
from schemas.errors import RecordError
from schemas.group import Group
from schemas.headers import UNREADABLE_HEADERS
from schemas.record import Source


class Raw:
    """A record of confluent-kafka with such a header name."""

    def headers(self) -> None:
        raise SystemError("<method 'headers'> returned a result with an exception set")


def test_unreadable_headers_become_one_header_that_says_so() -> None:
    assert headers_of(Raw()) == ((UNREADABLE_HEADERS, None),)  # type: ignore[arg-type]


def test_a_record_whose_headers_cannot_be_read_is_refused() -> None:
    unreadable = ((UNREADABLE_HEADERS, None),)
    with pytest.raises(RecordError, match="not UTF-8") as caught:
        decode_query(
            b'{"query_id": "q", "text": "x"}', unreadable, Source(topic="t", partition=0, offset=0)
        )
    assert (caught.value.reason, caught.value.query_id) == ("bad_envelope", "q")
    with pytest.raises(RecordError, match="not UTF-8"):
        decode(Group, b"{}", unreadable)
