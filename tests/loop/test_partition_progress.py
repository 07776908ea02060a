"""Completions in any order in; an offset and its metadata out."""

from __future__ import annotations

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
    progress = PartitionProgress(0)
    progress.take(0, 2)
    assert progress.complete(0, 1)
    assert not progress.complete(0, 1)
    assert not progress.complete(0, 2)
    assert not progress.complete(7, 0)


def test_before_the_first_record_there_is_no_position() -> None:
    progress = PartitionProgress(None)
    assert progress.low_watermark is None
    assert progress.position_with({}).metadata == ""
    progress.take(5, 1)
    assert progress.low_watermark == 5


def test_a_restart_knows_what_an_earlier_life_completed() -> None:
    progress = PartitionProgress(10, "1;1+2,4:0.2-3")
    assert progress.already_done(10) == (False, frozenset())
    assert progress.already_done(11) == (True, frozenset())
    assert progress.already_done(12) == (True, frozenset())
    assert progress.already_done(14) == (False, frozenset({0, 2, 3}))
    progress.take(10, 1)
    assert progress.complete(10, 0)
    assert progress.position_with({}).metadata == "1;0+2,3:0.2-3", (
        "what was not read again yet is still committed"
    )
    progress.take(11, 5)
    progress.take(12, 5)
    assert progress.low_watermark == 13
    progress.take(14, 4)
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
    """Against the dumb version, a set: kill at any point, read on from the commit, and each part is
    completed once.
    """
    owed = {(offset, part) for offset, parts in enumerate(parts_of) for part in range(parts)}
    completed: set[tuple[int, int]] = set()
    position: tuple[int | None, str] = (None, "")
    for _ in range(3):
        progress = PartitionProgress(*position)
        live = []
        for offset in range(position[0] or 0, len(parts_of)):
            whole, done = progress.already_done(offset)
            progress.take(offset, parts_of[offset])
            if not whole:
                live += [(offset, part) for part in range(parts_of[offset]) if part not in done]
        assert set(live) == owed - completed
        order = data.draw(st.permutations(live))
        for offset, part in order[: data.draw(st.integers(0, len(order)))]:
            assert progress.complete(offset, part)
            completed.add((offset, part))
        position = progress.position_with({})
