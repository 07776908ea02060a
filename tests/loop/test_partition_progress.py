"""Completions in any order in; an offset and its metadata out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.errors import DeploymentError
from carpool.kafka.commit_metadata import Completed, OffsetRuns, decode_metadata, encode_metadata
from carpool.loop.partition_progress import PartitionProgress


def test_the_low_watermark_is_the_first_record_that_still_owes_a_part() -> None:
    progress = PartitionProgress(10)
    for offset, parts in ((10, 2), (11, 1), (14, 3)):  # 12 and 13 are transaction markers
        progress.take(offset, parts)
    assert progress.low_watermark == 10
    assert progress.complete(11, 0)
    assert progress.complete(14, 0)
    assert progress.complete(14, 2)
    assert progress.position_with({}) == (10, "1;1+3,4:0.2"), "nothing is owed between two records"
    assert progress.complete(10, 0)
    assert progress.position_with({}) == (10, "1;0:0,1+3,4:0.2")
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


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "2;1+1",
        "3;1+1",
        "1;1+",
        "1;a:b",
        "1;1",
        "1;0:5-1",
        "1;-5+1",
        "1;0+0",
        "1;0:9-" + "9" * 9,
    ],
)
def test_metadata_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(DeploymentError, match="cannot be read"):
        PartitionProgress(3, text)


def test_two_million_records_above_a_slow_one_are_one_run_and_none_is_repeated() -> None:
    """Markers of transactions between the records cut no run."""
    slow = 1_000
    progress = PartitionProgress(slow)
    progress.take(slow, 1)
    for offset in range(slow + 1, slow + 2_000):
        if offset % 250:
            progress.take(offset, 1)
            progress.complete(offset, 0)
    low, metadata = progress.position_with({})
    assert (low, metadata) == (slow, "1;1+1999")
    assert progress.ahead == 2_000
    restarted = PartitionProgress(slow, "1;1+2000000")
    assert restarted.take(slow, 1) == set()
    assert restarted.take(slow + 2_000_000, 1) == {0}
    assert restarted.take(slow + 2_000_001, 1) == set()
    assert restarted.ahead == 2_000_002


@given(
    st.integers(0, 1_000),
    st.sets(st.integers(0, 60)),
    st.dictionaries(st.integers(61, 120), st.sets(st.integers(0, 100), min_size=1), max_size=20),
)
def test_metadata_lists_exactly_the_completed_parts(
    low: int, whole: set[int], parts: dict[int, set[int]]
) -> None:
    completed = Completed(
        OffsetRuns((low + offset, low + offset) for offset in whole),
        {low + offset: done for offset, done in parts.items()},
    )
    assert decode_metadata(low, encode_metadata(low, completed)) == completed


@given(st.data())
def test_runs_of_offsets_are_a_set(data: st.DataObject) -> None:
    runs, expected = OffsetRuns(), set[int]()
    for _ in range(data.draw(st.integers(0, 30))):
        first = data.draw(st.integers(0, 60))
        if data.draw(st.integers(0, 4)):
            last = first + data.draw(st.integers(0, 8))
            runs.add(first, last)
            expected |= set(range(first, last + 1))
        else:
            runs.discard_before(first)
            expected = {offset for offset in expected if offset >= first}
        listed = list(runs)
        assert {each for first, last in listed for each in range(first, last + 1)} == expected
        assert len(runs) == len(expected)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(listed))
        assert {offset for offset in range(75) if offset in runs} == expected


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
