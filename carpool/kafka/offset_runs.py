"""A set of offsets, kept as runs of consecutive offsets. Pure.

Memory and time depend on the number of runs, not on the number of offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class OffsetRuns:
    """Runs of offsets, ascending; two runs never touch. Not thread-safe."""

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        """`runs`: (first, last) of each run, both included, in any order."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in runs:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Adds the offsets from `first` to `last`, both included."""
        begin = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if begin < end:  # these runs overlap the new one, or touch it
            first = min(first, self._firsts[begin])
            last = max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def discard_before(self, offset: int) -> None:
        """Removes all offsets less than `offset`."""
        gone = bisect_left(self._lasts, offset)
        del self._firsts[:gone], self._lasts[:gone]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], offset)

    def copy(self) -> OffsetRuns:
        """Returns an independent copy."""
        copied = OffsetRuns()
        copied._firsts, copied._lasts = self._firsts.copy(), self._lasts.copy()
        return copied

    def __contains__(self, offset: int) -> bool:
        at = bisect_left(self._lasts, offset)
        return at < len(self._firsts) and self._firsts[at] <= offset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yields (first, last) of each run, ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRuns) and list(self) == list(other)

    def __len__(self) -> int:
        """Returns the number of offsets."""
        return sum(last - first + 1 for first, last in self)

    __hash__ = None  # type: ignore[assignment]  # it changes
