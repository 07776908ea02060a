"""The arena against a dumb bitmap, and the few cases that say what it promises."""

from __future__ import annotations

from itertools import groupby

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searcher.store.arena import Arena, Span, Spans, choose_block_bytes

BLOCK = 4096


@pytest.mark.parametrize("advice", ["mmap.MADV_HUGEPAGE", "_MADV_POPULATE_WRITE"])
def test_a_system_without_large_pages_or_without_filling_still_gives_memory(
    monkeypatch: pytest.MonkeyPatch, advice: str
) -> None:
    monkeypatch.setattr(f"searcher.store.arena.{advice}", 9_999)  # as unknown as there
    arena = Arena(4 * BLOCK, BLOCK)
    arena.fill(4 * BLOCK)
    (view,) = arena.views(arena.allocate(4 * BLOCK) or ())
    view[:] = bytes(range(256)) * (4 * BLOCK // 256)


def test_what_is_filled_is_in_memory_before_it_is_used() -> None:
    arena = Arena(96 << 20, 1 << 20)
    before_bytes = psutil.Process().memory_info().rss
    arena.fill(64 << 20)
    filled_bytes = psutil.Process().memory_info().rss - before_bytes
    assert 60 << 20 <= filled_bytes <= 70 << 20
    arena.fill(1 << 40)
    assert psutil.Process().memory_info().rss - before_bytes >= 92 << 20
    arena.close()


def test_a_part_of_a_block_takes_all_of_it_and_nothing_takes_one() -> None:
    assert Arena(3 * BLOCK - 1, BLOCK).size_bytes == 2 * BLOCK
    arena = Arena(3 * BLOCK, BLOCK)
    assert arena.blocks_bytes(0) == arena.blocks_bytes(1) == arena.blocks_bytes(BLOCK) == BLOCK
    assert arena.allocate(BLOCK + 1) == (Span(offset_bytes=0, size_bytes=2 * BLOCK),)
    assert arena.allocate(BLOCK + 1) is None
    assert arena.free_bytes == BLOCK


@given(st.lists(st.one_of(st.integers(1, 9), st.integers(-12, -1)), max_size=60))
def test_it_keeps_the_books_of_a_bitmap(steps: list[int]) -> None:
    """A positive step allocates as many blocks, a negative one frees one of what is held."""
    arena = Arena(24 * BLOCK, BLOCK)
    bitmap = [False] * 24
    held: list[Spans] = []
    for step in steps:
        if step < 0:
            if held:
                spans = held.pop(step % len(held))
                arena.free(spans)
                for block in blocks_of(spans):
                    bitmap[block] = False
        else:
            spans_or_none = arena.allocate(step * BLOCK)
            assert (spans_or_none is None) == (bitmap.count(False) < step)
            if spans_or_none is not None:
                blocks = blocks_of(spans_or_none)
                assert len(blocks) == step
                assert not any(bitmap[block] for block in blocks)
                assert blocks == expected(bitmap, step)
                for block in blocks:
                    bitmap[block] = True
                held.append(spans_or_none)
        assert arena.free_bytes == bitmap.count(False) * BLOCK
        arena.check_integrity()


def expected(bitmap: list[bool], wanted: int) -> list[int]:
    """The first blocks of the smallest free run that is long enough, after the largest ones."""
    runs = [[*run] for is_taken, run in groupby(range(24), bitmap.__getitem__) if not is_taken]
    found: list[int] = []
    while wanted > len(max(runs, key=len)):
        largest = max(runs, key=len)
        runs.remove(largest)
        found += largest
        wanted -= len(largest)
    return found + min((run for run in runs if len(run) >= wanted), key=len)[:wanted]


def blocks_of(spans: Spans) -> list[int]:
    return [
        block
        for span in spans
        for block in range(
            span.offset_bytes // BLOCK, (span.offset_bytes + span.size_bytes) // BLOCK
        )
    ]


def test_a_block_is_about_a_128th_of_the_mean_cluster_in_whole_pages() -> None:
    assert choose_block_bytes(8192, 15 << 20) == 122880
    assert choose_block_bytes(4096, 4096) == 4096
    assert choose_block_bytes(12288, 1 << 30) == 1044480
