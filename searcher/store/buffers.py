"""The buffers of small reads: a fixed number of slots of one size, taken and given back."""

from __future__ import annotations

import mmap

PAGE_BYTES = 4096


class ReadBuffers:
    """`slots` buffers of `slot_pages` pages of 4 KiB each. Not thread-safe."""

    def __init__(self, slots: int, slot_pages: int) -> None:
        self.slot_pages = slot_pages
        self.size_bytes = slots * slot_pages * PAGE_BYTES
        self._view = memoryview(mmap.mmap(-1, self.size_bytes))
        self._free = list(range(slots))
        self._slots = slots

    @property
    def free(self) -> int:
        """The number of free slots."""
        return len(self._free)

    @property
    def taken(self) -> int:
        """The number of slots in use."""
        return self._slots - len(self._free)

    def take(self, pages: int) -> tuple[int, memoryview]:
        """Returns a free slot and `pages` pages of it, at most `slot_pages`."""
        assert pages <= self.slot_pages, f"{pages} pages do not fit a slot"
        slot = self._free.pop()
        start = slot * self.slot_pages * PAGE_BYTES
        return slot, self._view[start : start + pages * PAGE_BYTES]

    def give_back(self, slot: int) -> None:
        """Frees a slot."""
        assert slot not in self._free, f"slot {slot} is free already"
        self._free.append(slot)
