"""An io_uring for reads: a submission queue and a completion queue that the kernel shares.

The system calls go through `ctypes`, which releases the GIL during a call; the binding `liburing`
2026.3.30 does not, and keeps a reference to every buffer. Only for processors that keep loads in
order: Python has no memory barriers.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct

import numpy as np
import numpy.typing as npt

ORDERED_MACHINES = ("x86_64", "AMD64")

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # system calls; the same on every architecture
_REGISTER_EVENTFD = 4
_SINGLE_MMAP = 1
_SQES_OFFSET = 0x10000000
_READ = 22

_PARAMS = struct.Struct("=IIIIIII3I8IQ8IQ")
# sq_entries, cq_entries, flags, 2 of a thread, features, wq_fd, 3 reserved, offsets of the
# submission queue (head, tail, mask, entries, flags, dropped, array, reserved, address), offsets of
# the completion queue (head, tail, mask, entries, overflow, cqes, flags, reserved, address)
_ENTRIES = np.dtype(
    {
        "names": ["opcode", "file", "offset", "address", "length", "token"],
        "formats": ["u1", "<i4", "<u8", "<u8", "<u4", "<u8"],
        "offsets": [0, 4, 8, 16, 24, 32],
        "itemsize": 64,
    }
)
_COMPLETIONS = np.dtype([("token", "<u8"), ("result", "<i4"), ("flags", "<u4")])
_UINT32 = (1 << 32) - 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = (ctypes.c_long,) * 7
_libc.syscall.restype = ctypes.c_long


def _call(number: int, *arguments: int) -> int:
    result = int(_libc.syscall(number, *arguments, *([0] * (6 - len(arguments)))))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class Ring:
    """A ring with room for `entries` reads at a time. For one thread at a time; never blocks."""

    def __init__(self, entries: int, eventfd: int) -> None:
        """Makes the ring; the kernel adds to `eventfd` when a read ends. Raises `OSError` where it
        refuses.
        """
        if platform.machine() not in ORDERED_MACHINES:
            raise OSError(
                errno.ENOSYS,
                f"io_uring is used on {ORDERED_MACHINES[0]} only, and this is {platform.machine()}",
            )
        params = ctypes.create_string_buffer(_PARAMS.size)
        self._file = _call(_SETUP, entries, ctypes.addressof(params))
        try:
            self._map(_PARAMS.unpack(params.raw))
            event = ctypes.c_int(eventfd)
            _call(_REGISTER, self._file, _REGISTER_EVENTFD, ctypes.addressof(event), 1)
        except BaseException:
            os.close(self._file)
            raise

    def _map(self, params: tuple[int, ...]) -> None:
        (sq_entries, cq_entries), features = params[:2], params[5]
        _, sq_tail, sq_mask, _, _, _, sq_array = params[10:17]
        cq_head, cq_tail, cq_mask, _, _, cqes = params[19:25]
        if not features & _SINGLE_MMAP:
            raise OSError(errno.ENOSYS, "the kernel's io_uring is too old (before 5.4)")
        size_bytes = max(sq_array + sq_entries * 4, cqes + cq_entries * _COMPLETIONS.itemsize)
        queues = self._queues = mmap.mmap(
            self._file, size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
        )
        self._entries = mmap.mmap(
            self._file,
            sq_entries * 64,
            flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
            offset=_SQES_OFFSET,
        )
        # Single stores and loads of 4 bytes, which `struct` does not promise.
        self._sq_tail = ctypes.c_uint32.from_buffer(queues, sq_tail)
        self._cq_head = ctypes.c_uint32.from_buffer(queues, cq_head)
        self._cq_tail = ctypes.c_uint32.from_buffer(queues, cq_tail)
        self._sq_mask = ctypes.c_uint32.from_buffer(queues, sq_mask).value
        self._cq_mask = ctypes.c_uint32.from_buffer(queues, cq_mask).value
        self._cqes_bytes = cqes
        self._all_entries = np.frombuffer(self._entries, _ENTRIES, sq_entries)
        self._all_completions = np.frombuffer(queues, _COMPLETIONS, cq_entries, cqes)
        self._unsubmitted = 0
        for place in range(sq_entries):
            ctypes.c_uint32.from_buffer(queues, sq_array + place * 4).value = place

    def prepare_reads(
        self,
        tokens: npt.NDArray[np.uint64],
        files: npt.NDArray[np.int32],
        offsets_bytes: npt.NDArray[np.int64],
        addresses: npt.NDArray[np.int64],
        sizes_bytes: npt.NDArray[np.int64],
    ) -> None:
        """Adds n reads to the queue; there must be room. All arrays are (n,).

        `files`: descriptors; `addresses`: of memory that is kept until the reads have ended.
        """
        tail = self._sq_tail.value
        entries = self._all_entries
        at = (tail + np.arange(len(tokens))) & self._sq_mask
        added = np.zeros(len(tokens), _ENTRIES)
        added["opcode"] = _READ
        added["file"] = files
        added["offset"] = offsets_bytes
        added["address"] = addresses
        added["length"] = sizes_bytes
        added["token"] = tokens
        entries[at] = added
        self._sq_tail.value = (tail + len(tokens)) & _UINT32
        self._unsubmitted += len(tokens)

    def submit(self) -> bool:
        """Submits the queue. Returns False where the kernel is short of memory: try again.

        Raises `OSError`.
        """
        while self._unsubmitted:
            try:
                self._unsubmitted -= _call(_ENTER, self._file, self._unsubmitted)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EBUSY):
                    return False
                if error.errno != errno.EINTR:
                    raise
        return True

    def completed(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the reads that have ended, each once: tokens and results, (n,) int64 each.

        A result is the bytes that were read or, below 0, an errno.
        """
        head, tail = self._cq_head.value, self._cq_tail.value
        at = np.arange(head, head + ((tail - head) & _UINT32)) & self._cq_mask
        ended = self._all_completions[at]
        self._cq_head.value = tail
        return ended["token"].astype(np.int64), ended["result"].astype(np.int64)

    def close(self) -> None:
        """Frees the ring; no read may be in progress."""
        del self._all_entries, self._all_completions
        del self._sq_tail, self._cq_head, self._cq_tail
        self._queues.close()
        self._entries.close()
        os.close(self._file)
