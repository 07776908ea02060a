"""A disk that is slow, fails, comes short, rots or hangs: a block engine of the searcher around
another one.

What the engine within has read is held back, damaged or refused on its way out, as `fault` says of
each read. It stands where an engine stands, around io_uring or threads over real files as well as
around segments in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from carpool.clock import Clock, SystemClock
from carpool.errors import CarpoolError, CorruptionError

Fault = Literal["hang", "flip", "short"] | float | CarpoolError | None
"""What happens to a read. A number: it comes back so many seconds late. `hang`: it comes back when
it is released. `flip`: a bit in its middle is another one. `short`: the file ends in its middle. An
error: it fails with that, `RetryableError` for one that may succeed when it is made again. None:
nothing.
"""

OnDone = Callable[[int, Any, int], None]


class DiskRead(Protocol):
    """What is known of a read: a `searcher.store.engine.BlockRead`."""

    @property
    def token(self) -> int:
        """Its name among those that have not ended."""
        ...

    @property
    def file(self) -> int:
        """The number of the segment."""
        ...

    @property
    def offset_bytes(self) -> int:
        """Where in the segment it begins."""
        ...

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        """What is filled, one after the other."""
        ...


R = TypeVar("R", bound=DiskRead)
R_contra = TypeVar("R_contra", bound=DiskRead, contravariant=True)


class Engine(Protocol[R_contra]):
    """A `searcher.store.engine.BlockEngine`, which says what each method promises."""

    def start(self, on_done: OnDone) -> None: ...

    def submit(self, reads: Sequence[R_contra]) -> None: ...

    def cancel(self, tokens: Sequence[int]) -> None: ...

    def promote(self, tokens: Sequence[int]) -> None: ...

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]: ...

    def give_up(self, tokens: Sequence[int]) -> None: ...

    def close(self, timeout_s: float) -> bool: ...


@dataclass
class FaultyDisk(Generic[R]):
    """An engine in which `fault` is asked about each read when `inner` has ended it; it may be set
    anew at any time.

    `seen`: every read that was submitted, with its buffers. `clock` is the searcher's. A read that
    is held back takes no place among the `depth` of `inner`: it delays itself, not the next one.
    Release what hangs before the end of a test.
    """

    inner: Engine[R]
    fault: Callable[[R], Fault] = lambda _: None
    clock: Clock = field(default_factory=SystemClock)
    seen: list[R] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._reads: dict[int, R] = {}
        self._held_since_us: dict[int, int] = {}
        self._hanging: dict[int, int] = {}  # with how long the engine within took
        self._timers: list[threading.Timer] = []

    @property
    def hanging(self) -> int:
        """Reads that hang."""
        with self._changed:
            return len(self._hanging)

    def wait_until_hanging(self, count: int = 1, timeout_s: float = 30.0) -> None:
        """Blocks until so many reads hang. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._hanging) >= count, timeout_s):
                raise TimeoutError(
                    f"{len(self._hanging)} reads hang after {timeout_s:g} s, not {count}"
                )

    def release(self) -> None:
        """Lets go of all reads that hang: they end well."""
        with self._changed:
            released, self._hanging = self._hanging, {}
            for token in released:
                del self._held_since_us[token]
        for token, latency_us in released.items():
            self._on_done(token, None, latency_us)

    # The engine.

    def start(self, on_done: OnDone) -> None:
        """Starts the engine within."""
        self._on_done = on_done
        self.inner.start(self._end)

    def submit(self, reads: Sequence[R]) -> None:
        """Takes in reads."""
        with self._changed:
            self.seen.extend(reads)
            self._reads.update((read.token, read) for read in reads)
        self.inner.submit(reads)

    def cancel(self, tokens: Sequence[int]) -> None:
        """Drops what the engine within has not begun with."""
        self.inner.cancel(tokens)

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes demands of prefetches."""
        self.inner.promote(tokens)

    def give_up(self, tokens: Sequence[int]) -> None:
        """Counts these reads no longer."""
        self.inner.give_up(tokens)

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """Returns what is at work within, what is late, and what hangs: that one has been with the
        kernel for ever.
        """
        with self._changed:
            held = tuple(
                token for token, since_us in self._held_since_us.items() if since_us < before_us
            )
        return (*self.inner.with_kernel_since(before_us), *held)

    def close(self, timeout_s: float) -> bool:
        """Waits for what is late, then closes the engine within. Returns whether all reads have
        ended: not those that hang.
        """
        for timer in self._timers:
            timer.join()
        return self.inner.close(timeout_s) and not self._hanging

    def _end(self, token: int, error: Any, latency_us: int) -> None:
        """Ends a read of the engine within; called from its threads."""
        with self._changed:
            read = self._reads.pop(token)
        fault = self.fault(read) if error is None else None
        match fault:
            case "hang":
                with self._changed:
                    self._hanging[token], self._held_since_us[token] = latency_us, 0
                    self._changed.notify_all()
                return
            case float() | int():
                self._end_late(token, fault, latency_us)
                return
            case "flip":
                read.buffers[0][len(read.buffers[0]) // 2] ^= 1
            case "short":
                error = _cut_short(read)
            case CarpoolError():
                error = fault
        self._on_done(token, error, latency_us)

    def _end_late(self, token: int, late_s: float, latency_us: int) -> None:
        def end() -> None:
            with self._changed:
                del self._held_since_us[token]
            self._on_done(token, None, latency_us + int(late_s * 1_000_000))

        timer = threading.Timer(late_s, end)
        with self._changed:
            self._held_since_us[token] = self.clock.now_us() - latency_us
            self._timers.append(timer)
        timer.start()


def _cut_short(read: DiskRead) -> CorruptionError:
    end_bytes = read.offset_bytes + sum(buffer.nbytes for buffer in read.buffers) // 2
    return CorruptionError(
        f"segment {read.file} ends at byte {end_bytes}, within a read: the disk was told to come "
        "short",
        path=f"segment {read.file}",
        offset_bytes=end_bytes,
    )
