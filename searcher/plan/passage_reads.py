"""Which pages of 4 KiB have the ranges of bytes that are wanted, and which queries go together.
Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

PAGE_BYTES = 4096


class Piece(NamedTuple):
    """The bytes `begin` to `end` of a file, of the range at position `of`.

    `is_alone`: no other piece is in its read.
    """

    of: int
    begin: int
    end: int
    is_alone: bool = False


class PlannedRead(NamedTuple):
    """The pages `first` to `end` of a file, and the pieces that are in them."""

    first: int
    end: int
    pieces: tuple[Piece, ...]


def cut_ranges(starts: Sequence[int], sizes: Sequence[int], pages_max: int) -> list[Piece]:
    """Returns the ranges in pieces of at most so many pages each, in rising order of bytes.

    Ranges may overlap, or be empty: these have no piece.
    """
    pieces = []
    for of, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        begin = start
        while begin < start + size:
            end = min(start + size, (begin // PAGE_BYTES + pages_max) * PAGE_BYTES)
            pieces.append(Piece(of, begin, end))
            begin = end
    return sorted(pieces, key=lambda piece: piece.begin)


def take_reads(wanted: deque[Piece], pages_max: int) -> list[PlannedRead]:
    """Takes the next pieces from `wanted`, as many as fit so many pages: at least one.

    Neighbours are one read, so each page is read once.
    """
    reads: list[PlannedRead] = []
    left = pages_max
    while wanted:
        piece = wanted[0]
        first, end = piece.begin // PAGE_BYTES, -(-piece.end // PAGE_BYTES)
        joins = bool(reads) and not piece.is_alone and reads[-1].first <= first <= reads[-1].end
        more = end - (max(first, min(reads[-1].end, end)) if joins else first)
        if more > left:
            break
        left -= more
        if joins:
            one = reads.pop()
            reads.append(PlannedRead(one.first, max(one.end, end), (*one.pieces, piece)))
        else:
            reads.append(PlannedRead(first, end, (piece,)))
        wanted.popleft()
    return reads


def share_out(
    wanted: Sequence[Sequence[int]], size_bytes: Mapping[int, int], bytes_max: int
) -> Iterator[range]:
    """Yields the positions of queries whose documents are read together, in their order.

    `wanted`: the documents of each query; `size_bytes` of each document, 0 where there is none.
    What several queries want counts once. One query may exceed `bytes_max`; more do not.
    """
    start, total, seen = 0, 0, set[int]()
    for position, documents in enumerate(wanted):
        more = sum(size_bytes.get(one, 0) for one in set(documents) - seen)
        if position > start and total + more > bytes_max:
            yield range(start, position)
            start, seen = position, set()
            more = sum(size_bytes.get(one, 0) for one in set(documents))
            total = 0
        total += more
        seen.update(documents)
    if wanted:
        yield range(start, len(wanted))
