"""Completions in any order in; an offset and its metadata out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.kafka.commit_metadata import decode_metadata, encode_metadata
from carpool.loop.partition_progress import PartitionProgress


def test_the_low_watermark_is_the_first_record_that_still_owes_a_part() -> None:
    progress = PartitionProgress(10)
    for offset, parts in ((10, 2), (11, 1), (14, 3)):  # 12 and 13 are transaction markers
        progress.take(offset, parts)
    assert progress.low_watermark == 10
    assert progress.complete(11, 0)
    assert progress.complete(14, 0)
    assert progress.complete(14, 2)
    assert progress.position_with({}) == (10, "1;1+1,4:0.2")
    assert progress.complete(10, 0)
    assert progress.position_with({}) == (10, "1;0:0,1+1,4:0.2")
    assert progress.complete(10, 1)
    assert progress.position_with({}) == (14, "1;0:0.2")
    assert progress.complete(14, 1)
    assert progress.position_with({}) == (15, "")
    assert progress.in_flight == 0


def test_a_part_counts_once_and_only_if_it_is_owed() -> None:
    progress = PartitionProgress(None)
    assert progress.low_watermark is None
    assert progress.position_with({}) == (None, "")
    progress.take(5, 2)
    assert progress.low_watermark == 5
    assert progress.complete(5, 1)
    for offset, part in ((5, 1), (5, 2), (7, 0)):
        assert not progress.complete(offset, part)
    with pytest.raises(ValueError, match="offset 5 was taken before"):
        progress.take(5, 2)


def test_a_restart_knows_what_an_earlier_life_completed() -> None:
    progress = PartitionProgress(10, "1;1+2,4:0.2-3")
    assert progress.take(10, 1) == set()
    assert progress.complete(10, 0)
    assert progress.position_with({}).metadata == "1;0+2,3:0.2-3", (
        "completed records that are not read again yet stay in the commit"
    )
    assert progress.take(11, 2) == progress.take(12, 2) == {0, 1}
    assert progress.low_watermark == 13
    assert progress.take(14, 4) == {0, 2, 3}
    assert progress.complete(14, 1)
    assert progress.low_watermark == 15


def test_foreign_or_broken_metadata_counts_as_none() -> None:
    for text in ("", "x", "2;1+1", "1;1+", "1;a:b", "1;1", "1;0+99999999999", "1;0:5-1", "1;-5+1"):
        assert decode_metadata(3, text) == (set(), {}), text


@given(
    st.integers(0, 1_000),
    st.sets(st.integers(0, 60)),
    st.dictionaries(st.integers(61, 120), st.sets(st.integers(0, 100), min_size=1), max_size=20),
)
def test_metadata_lists_exactly_the_completed_parts(
    low: int, whole: set[int], parts: dict[int, set[int]]
) -> None:
    absolute = (
        {low + offset for offset in whole},
        {low + offset: done for offset, done in parts.items()},
    )
    assert decode_metadata(low, encode_metadata(low, *absolute)) == absolute


@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), st.data())
def test_any_order_and_any_restart_lose_and_repeat_nothing(
    parts_of: list[int], data: st.DataObject
) -> None:
    """Compares with a set: a kill at any point, then reading from the commit."""
    owed = {(offset, part) for offset, parts in enumerate(parts_of) for part in range(parts)}
    completed: set[tuple[int, int]] = set()
    position: tuple[int | None, str] = (None, "")
    for _ in range(3):
        progress = PartitionProgress(*position)
        live = []
        for offset in range(position[0] or 0, len(parts_of)):
            done = progress.take(offset, parts_of[offset])
            live += [(offset, part) for part in range(parts_of[offset]) if part not in done]
        assert set(live) == owed - completed
        order = data.draw(st.permutations(live))
        for offset, part in order[: data.draw(st.integers(0, len(order)))]:
            assert progress.complete(offset, part)
            completed.add((offset, part))
        position = progress.position_with({})
