"""Every poison record is refused for the reason that it names."""

from __future__ import annotations

import pytest

from schemas.codec import decode_query
from schemas.errors import RecordError
from schemas.record import Source
from schemas.topics import QUERIES
from tests.rig.poison import Poison, poison_for, poison_records

PLACE = Source(topic=QUERIES.name, partition=0, offset=7, timestamp_ms=0)


@pytest.mark.parametrize(
    "poison", poison_records(), ids=lambda each: f"{each.reason} {each.query_id}"
)
def test_each_is_refused_for_its_reason_and_says_whom_to_answer(poison: Poison) -> None:
    with pytest.raises(RecordError) as refused:
        decode_query(poison.value, poison.headers, PLACE)
    assert (refused.value.reason, refused.value.query_id) == (poison.reason, poison.query_id)


def test_what_only_an_index_refuses_is_read_well() -> None:
    for poison in poison_for("hashing:8", 8):
        assert decode_query(poison.value, poison.headers, PLACE).query_id == poison.query_id


def test_the_topic_of_queries_takes_each_of_them() -> None:
    assert (
        max(len(poison.value or b"") for poison in poison_records())
        < QUERIES.max_message_bytes - 4_096
    )
