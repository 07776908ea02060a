"""Reads the codes of clusters, in pieces, into a few buffers of one size.

Clusters are read in the order in which they are wanted, and taken in that order; the buffers hold
what is read ahead. A piece is verified before it is taken. A read that fails with a passing error
is tried again; one that hangs is given up, and its buffer stays out of use until the kernel returns
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from carpool.disk.index import OpenCodes
from carpool.errors import RetryableError
from schemas.record import ClusterId
from searcher.codes.source import ReadError
from searcher.store.buffers import PAGE_BYTES, ReadBuffers
from searcher.store.page_reads import PageBatch, PageReads
from searcher.store.reads_in_flight import NO_MEMORY, ReadsInFlight

UInt8 = npt.NDArray[np.uint8]
Load = Callable[[int, UInt8], None]


@dataclass(slots=True, eq=False)
class _Slot:
    """A buffer in use. `left`: pieces not taken; `in_kernel`: batches that read into it."""

    number: int
    left: int = 0
    in_kernel: int = 0


@dataclass(slots=True, eq=False)
class _Piece:
    """Pages of the codes of a cluster, from byte `start` of them. `ticket`: of the request."""

    ticket: int
    cluster: ClusterId
    start: int
    pages: int
    slot: _Slot | None = None
    view: memoryview = field(default_factory=lambda: memoryview(b""))
    attempt: int = 1
    has_ended: bool = False
    error: ReadError | None = None


class PieceReader:
    """Reads codes for one thread. `reads` and `buffers` belong to the caller."""

    def __init__(
        self,
        codes: OpenCodes,
        reads: PageReads,
        buffers: ReadBuffers,
        timeout_us: int,
        clock: Clock,
    ) -> None:
        self._codes = codes
        self._buffers = buffers
        self._in_flight = ReadsInFlight[tuple[_Slot, list[_Piece]]](
            reads, timeout_us, clock, self._free
        )
        self._next_ticket = 0
        self._wanted: dict[int, deque[_Piece]] = {}  # not taken yet, by ticket
        self._unstarted: deque[_Piece] = deque()

    @property
    def unstarted_pages(self) -> int:
        """Pages that are wanted and not with the kernel yet."""
        return sum(piece.pages for piece in self._unstarted)

    @property
    def times_out_at_us(self) -> int | None:
        """When the oldest read in progress is given up; None while there is none."""
        return self._in_flight.times_out_at_us

    def want(self, cluster: ClusterId) -> int:
        """Reads the codes of a cluster, after those that were wanted before; returns a ticket."""
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        most = self._buffers.slot_pages
        left = self._codes.extents[cluster].read_bytes // PAGE_BYTES
        pieces: deque[_Piece] = deque()
        start = 0
        while left:
            pieces.append(_Piece(ticket, cluster, start, min(left, most)))
            start += pieces[-1].pages * PAGE_BYTES
            left -= pieces[-1].pages
        self._wanted[ticket] = pieces
        self._unstarted.extend(pieces)
        return ticket

    def take(self, ticket: int, load: Load) -> bool | ReadError:
        """Calls `load` with what was read of a cluster: its first byte, and verified codes.

        Returns True when that is all, False when there is more to come, and the error when a piece
        cannot be read: then the cluster is not wanted any more.
        """
        pieces = self._wanted[ticket]
        for piece in pieces:
            if piece.error is not None:
                self.forget(ticket)
                return piece.error
        while pieces and pieces[0].has_ended:
            piece = pieces.popleft()
            codes = np.frombuffer(piece.view, np.uint8)
            load(piece.start, codes[: self._codes.extents[piece.cluster].size_bytes - piece.start])
            self._give_up_place(piece)
        if not pieces:
            del self._wanted[ticket]
        return not pieces

    def forget(self, ticket: int) -> None:
        """Does not want a cluster any more."""
        pieces = self._wanted.pop(ticket)
        self._unstarted = deque(piece for piece in self._unstarted if piece.ticket != ticket)
        for piece in pieces:
            self._give_up_place(piece)

    def advance(self) -> None:
        """Starts reads, and looks which have ended. Does not block."""
        for batch, (_, pieces) in self._in_flight.ended():
            for position, piece in enumerate(pieces):
                self._judge(piece, batch, position)
        self._start()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where buffers were lost."""
        in_kernel = self._in_flight.owners() + self._in_flight.stuck()
        slots = {id(slot) for slot, _ in in_kernel} | {
            id(piece.slot)
            for pieces in self._wanted.values()
            for piece in pieces
            if piece.slot is not None
        }
        assert len(slots) == self._buffers.taken

    def _give_up_place(self, piece: _Piece) -> None:
        slot, piece.slot, piece.view = piece.slot, None, memoryview(b"")
        if slot is not None:
            slot.left -= 1
            self._release(slot)

    def _release(self, slot: _Slot) -> None:
        if not slot.left and not slot.in_kernel and slot.number >= 0:
            self._buffers.give_back(slot.number)
            slot.number = -1

    # ---- starting

    def _start(self) -> None:
        while self._unstarted:
            if not self._buffers.free:
                self._fail_unstarted_if_stuck()
                return
            pieces: list[_Piece] = []
            room = self._buffers.slot_pages
            while self._unstarted and self._unstarted[0].pages <= room:
                pieces.append(self._unstarted.popleft())
                room -= pieces[-1].pages
            number, buffer = self._buffers.take(self._buffers.slot_pages - room)
            slot, at = _Slot(number, len(pieces)), 0
            for piece in pieces:
                end = at + piece.pages * PAGE_BYTES
                piece.slot, piece.view, at = slot, buffer[at:end], end
            self._submit(slot, pieces, buffer)

    def _submit(self, slot: _Slot, pieces: list[_Piece], buffer: memoryview) -> None:
        extents = self._codes.extents
        batch = PageBatch(
            files=np.array([extents[piece.cluster].segment for piece in pieces], np.int64),
            offsets_bytes=np.array(
                [extents[piece.cluster].offset_bytes + piece.start for piece in pieces], np.int64
            ),
            sizes_bytes=np.array([piece.pages * PAGE_BYTES for piece in pieces], np.int64),
            buffer=buffer,
        )
        slot.in_kernel += 1
        self._in_flight.submit(batch, (slot, pieces))

    def _fail_unstarted_if_stuck(self) -> None:
        """Where every buffer is with reads that hang, what waits cannot be read."""
        stuck = {id(slot) for slot, _ in self._in_flight.stuck()}
        if len(stuck) == self._buffers.taken:
            for piece in self._unstarted:
                piece.error = RetryableError(NO_MEMORY)
            self._unstarted.clear()

    # ---- ending

    def _free(self, owner: tuple[_Slot, list[_Piece]]) -> None:
        slot, _ = owner
        slot.in_kernel -= 1
        self._release(slot)

    def _judge(self, piece: _Piece, batch: PageBatch, position: int) -> None:
        """A read has ended: is the piece correct, does it fail, or is it read again?"""
        slot, error = piece.slot, batch.errors.get(position)
        if slot is None:
            return  # its cluster failed meanwhile
        if error is not None and self._in_flight.may_retry(batch, error, piece.attempt):
            piece.attempt += 1
            self._submit(slot, [piece], piece.view)
            return
        piece.error = error if error is not None else self._damage(piece)
        piece.has_ended = piece.error is None

    def _damage(self, piece: _Piece) -> ReadError | None:
        extent = self._codes.extents[piece.cluster]
        file = self._codes.files[extent.segment]
        pages = np.frombuffer(piece.view, np.uint8).reshape(-1, PAGE_BYTES)
        wrong = file.first_damaged(pages, (extent.offset_bytes + piece.start) // PAGE_BYTES)
        return None if wrong is None else file.damaged(wrong)
