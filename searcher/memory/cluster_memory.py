"""The slices in memory: the arena that contains them, and the reads that fill it.

The caller decides what to read and what to free, and makes sure that there is room. One lock guards
the bookkeeping; pages are verified on the threads of the engine.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from carpool.clock import Clock
from carpool.disk.checked_file import CheckedFile
from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import ClusterPages, PageLayout
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.events import EventLog, Purpose
from searcher.memory.arena import Arena, Spans
from searcher.memory.cluster_reads import (
    Block,
    Load,
    MemoryEvent,
    ReadBroke,
    ReadDone,
    ReadRules,
    SpaceFreed,
    of_cluster,
    spans_bytes,
    split,
)
from searcher.memory.verify import PageVerifier
from searcher.plan.slices import SliceId
from searcher.store.engine import BlockEngine, BlockError, BlockRead, CancelledRead

__all__ = ["ClusterMemory", "MemoryEvent", "ReadBroke", "ReadDone", "ReadRules", "SpaceFreed"]

_log = structlog.get_logger(__name__)


class ClusterMemory:
    """Slices of clusters in an arena. Any thread may call; only `close` blocks.

    It owns arena and engine. The caller closes the engine's files after `close` returned True.
    """

    def __init__(
        self,
        *,
        layout: PageLayout,
        extents: Sequence[ClusterExtent],
        build_id: int,
        paths: Sequence[str],
        sums: Sequence[CheckedFile] = (),
        arena: Arena,
        engine: BlockEngine,
        rules: ReadRules,
        metrics: Metrics,
        clock: Clock,
        events: EventLog,
    ) -> None:
        """`extents`: by slice; `paths`, the names in errors, and `sums`: by segment."""
        assert arena.block_bytes % layout.page_bytes == 0, "a page would straddle two blocks"
        assert rules.block_bytes_max >= layout.page_bytes, "a read would not contain a page"
        self._extents = extents
        self._arena = arena
        self._engine = engine
        self._rules = rules
        self._verifier = PageVerifier(layout, build_id, paths, sums)
        self._metrics = metrics.searcher
        self._metrics.budget_bytes.set(arena.size_bytes)
        for purpose in ("demand", "prefetch"):
            self._metrics.bytes_read.labels(purpose=purpose)  # shown before the first read
        self._clock = clock
        self._events = events
        self._changed = threading.Condition()
        self._loading: dict[SliceId, Load] = {}
        self._stuck: list[Load] = []
        self._resident: dict[SliceId, tuple[Spans, ClusterPages]] = {}
        self._blocks: dict[int, Block] = {}  # by token, until their end is handled
        self._next_token = 1
        self._last_end_us = clock.now_us()
        self._outbox: deque[MemoryEvent] = deque()
        self._is_reporting = False
        self._is_closed = False
        self._watchdog = threading.Thread(target=self._watch, name="read-watchdog", daemon=True)

    def start(self, on_event: Callable[[MemoryEvent], None]) -> None:
        """Starts reading. `on_event` is called once for the end of each read, in order.

        A thread of the engine or the watchdog calls it, one at a time. It may call every method
        except `close`.
        """
        self._on_event = on_event
        self._engine.start(self._end_block)
        self._watchdog.start()

    # ---- what the executor calls

    @property
    def arena_bytes_total(self) -> int:
        """Bytes of the arena: the budget."""
        return self._arena.size_bytes

    @property
    def stuck_bytes(self) -> int:
        """Bytes of reads that were given up and that the kernel has not ended."""
        with self._changed:
            return sum(load.arena_bytes for load in self._stuck)

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that are not free."""
        with self._changed:
            return self._arena.size_bytes - self._arena.free_bytes

    def read_bytes(self, number: SliceId) -> int:
        """Returns the bytes that are read from the disk for a slice: its pages."""
        return self._extents[number].size_bytes

    def arena_bytes(self, number: SliceId) -> int:
        """Returns the bytes that a slice takes in the arena: its pages, in whole blocks."""
        return self._arena.blocks_bytes(self._extents[number].size_bytes)

    def begin_read(self, number: SliceId, *, is_prefetch: bool) -> None:
        """Starts to read a slice that is not in memory, for which there is room.

        Ignored after `close`.
        """
        extent = self._extents[number]
        with self._changed:
            if self._is_closed:
                return
            assert number not in self._loading, f"slice {number} is being read already"
            assert number not in self._resident, f"slice {number} is in memory already"
            spans = self._arena.allocate(extent.size_bytes)
            assert spans is not None, (
                f"no room for slice {number} in {self._arena.free_bytes} bytes: the plan is "
                "overdrawn"
            )
            purpose: Purpose = "prefetch" if is_prefetch else "demand"
            load = Load(
                number=number,
                extent=extent,
                purpose=purpose,
                spans=spans,
                started_us=self._clock.now_us(),
            )
            self._loading[number] = load
            reads = [
                self._block_read(
                    Block(load=load, start_bytes=start_bytes, buffers=buffers), is_prefetch
                )
                for start_bytes, buffers in split(
                    self._arena.views(spans),
                    extent.size_bytes,
                    self._rules.read_bytes(self._verifier.layout.page_bytes),
                )
            ]
            self._show()
        self._engine.submit(reads)

    def promote(self, number: SliceId) -> None:
        """Puts the reads of a slice that is read ahead before other reads ahead.

        A slice that is not being read is ignored.
        """
        with self._changed:
            load = self._loading.get(number)
            tokens = tuple(load.tokens) if load is not None else ()
        self._engine.promote(tokens)

    def cancel(self, number: SliceId) -> None:
        """Cancels a read. It ends with `CancelledRead`, or succeeds if the kernel had all of it.

        A slice that is not being read is ignored.
        """
        with self._changed:
            load = self._loading.get(number)
            if load is not None:
                load.is_cancelled = True
            tokens = tuple(load.tokens) if load is not None else ()
        self._engine.cancel(tokens)

    def evict(self, number: SliceId) -> None:
        """Frees a slice that is in memory; its pages must not be used any more."""
        with self._changed:
            spans, _ = self._resident.pop(number)
            self._arena.free(spans)
            self._show()

    def pages(self, number: SliceId) -> ClusterPages:
        """Returns the pages of a slice in memory, read-only, valid until it is evicted."""
        return self._resident[number][1]  # atomic under the GIL: needs no lock

    def residents(self) -> frozenset[SliceId]:
        """Returns the slices that are in memory, whole."""
        with self._changed:
            return frozenset(self._resident)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where slices, reads and arena disagree."""
        with self._changed:
            self._arena.check_integrity()
            spans = [spans for spans, _ in self._resident.values()]
            spans += [load.spans for load in (*self._loading.values(), *self._stuck)]
            assert self._arena.free_bytes + sum(map(spans_bytes, spans)) == self._arena.size_bytes
            loads = (*self._loading.values(), *self._stuck)
            assert sorted(self._blocks) == sorted(token for load in loads for token in load.tokens)
            assert all(load.tokens for load in loads), "a read has nothing left to wait for"

    def close(self, timeout_s: float) -> bool:
        """Ends all reads and frees the memory; blocks for up to twice `timeout_s`.

        No event is reported from now on. Returns whether `on_event` has returned and the kernel has
        ended all reads: the files must not be closed before.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            has_reported = self._changed.wait_for(lambda: not self._is_reporting, timeout=timeout_s)
        has_ended = self._engine.close(timeout_s if has_reported else 0.0) and has_reported
        if has_ended:
            with self._changed:
                self._resident.clear()
                self._arena.close()
        return has_ended

    # ---- reads

    def _block_read(self, block: Block, is_prefetch: bool) -> BlockRead:
        token, self._next_token = self._next_token, self._next_token + 1
        self._blocks[token] = block
        block.load.tokens.add(token)
        return BlockRead(
            token=token,
            file=block.load.extent.segment,
            offset_bytes=block.load.extent.offset_bytes + block.start_bytes,
            buffers=block.buffers,
            is_prefetch=is_prefetch,
        )

    def _end_block(self, token: int, error: BlockError | None, latency_us: int) -> None:
        """Handles the end of a block read, on a thread of the engine."""
        with self._changed:
            block = self._blocks[token]
        load = block.load
        if error is None:
            size_bytes = sum(buffer.nbytes for buffer in block.buffers)
            self._metrics.bytes_read.labels(purpose=load.purpose).inc(size_bytes)
            error = self._verifier.check(block)
        again: list[BlockRead] = []
        dropped: tuple[int, ...] = ()
        with self._changed:
            del self._blocks[token]
            load.tokens.remove(token)
            self._last_end_us = self._clock.now_us()
            if error is not None and load.error is None:
                if self._may_retry(block, error):
                    again.append(self._try_again(block, error))
                else:
                    load.error = of_cluster(error, load.extent.cluster)
                    dropped = tuple(load.tokens)
            if not load.tokens:
                self._end_load(load)
        if again:
            self._engine.submit(again)
        if dropped:
            self._engine.cancel(dropped)
        self._report()

    def _may_retry(self, block: Block, error: BlockError) -> bool:
        is_over = block.load.is_cancelled or block.load.is_stuck or self._is_closed
        return (
            isinstance(error, RetryableError)
            and block.attempt < self._rules.attempts
            and not is_over
        )

    def _try_again(self, block: Block, error: BlockError) -> BlockRead:
        load = block.load
        _log.warning(
            "read failed", cluster=load.extent.cluster, attempt=block.attempt, error=str(error)
        )
        following = replace(block, attempt=block.attempt + 1)
        return self._block_read(following, False)  # not a prefetch: it waited once

    def _end_load(self, load: Load) -> None:
        cluster = load.number
        now_us = self._clock.now_us()
        if load.is_stuck:
            self._stuck.remove(load)
            self._arena.free(load.spans)
            self._outbox.append(SpaceFreed(slice_id=cluster))
        else:
            del self._loading[cluster]
            self._events.read(ClusterId(load.extent.cluster), load.purpose, load.started_us, now_us)
            if load.error is None:
                self._resident[cluster] = (
                    load.spans,
                    self._verifier.pages(load.extent, self._arena.views(load.spans)),
                )
                self._outbox.append(ReadDone(slice_id=cluster))
            else:
                self._arena.free(load.spans)
                self._break(load, load.error, is_stuck=False)
        self._show()

    def _break(self, load: Load, error: BlockError, *, is_stuck: bool) -> None:
        cluster = load.extent.cluster
        if isinstance(error, CorruptionError):
            self._metrics.clusters_damaged.inc()
            _log.error("cluster damaged", cluster=cluster, error=str(error))
        elif not isinstance(error, CancelledRead):
            _log.error("cluster not read", cluster=cluster, error=str(error))
        self._outbox.append(ReadBroke(slice_id=load.number, error=error, is_stuck=is_stuck))

    def _report(self) -> None:
        """Reports events, one at a time, in order, unless another thread is doing so."""
        while True:
            with self._changed:
                if self._is_reporting or not self._outbox:
                    return
                event = self._outbox.popleft()
                if self._is_closed:
                    continue
                self._is_reporting = True
            try:
                self._on_event(event)
            except Exception:  # reading continues
                _log.exception("the end of a read could not be reported", slice=event.slice_id)
            finally:
                self._end_reporting()

    def _end_reporting(self) -> None:
        with self._changed:
            self._is_reporting = False
            if self._is_closed:  # `close` waits for this
                self._changed.notify_all()

    def _show(self) -> None:
        reading_bytes = sum(load.arena_bytes for load in self._loading.values())
        stuck_bytes = sum(load.arena_bytes for load in self._stuck)
        used_bytes = self._arena.size_bytes - self._arena.free_bytes
        shown = self._metrics.resident_bytes
        shown.labels(kind="resident").set(used_bytes - reading_bytes - stuck_bytes)
        shown.labels(kind="in_flight").set(reading_bytes)
        shown.labels(kind="stuck").set(stuck_bytes)

    # ---- reads that never return

    def _watch(self) -> None:
        period_s = self._rules.watch_us / 1_000_000
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, timeout=period_s)
                if self._is_closed:
                    return
            self._give_up(self._clock.now_us() - self._rules.timeout_us)
            self._report()

    def _give_up(self, before_us: int) -> None:
        """Gives up reads that the kernel got before `before_us`.

        If no read at all has ended since then, reads that wait for the kernel are given up too.
        """
        overdue = self._engine.with_kernel_since(before_us)
        dropped: list[int] = []
        with self._changed:
            loads = {
                id(self._blocks[token].load): self._blocks[token].load
                for token in overdue
                if token in self._blocks
            }
            if self._last_end_us < before_us:
                loads |= {
                    id(load): load for load in self._loading.values() if load.started_us < before_us
                }
            for load in loads.values():
                if load.is_stuck:
                    continue
                load.is_stuck = True
                del self._loading[load.number]
                self._stuck.append(load)
                dropped.extend(load.tokens)
                now_us = self._clock.now_us()
                self._events.read(
                    ClusterId(load.extent.cluster), load.purpose, load.started_us, now_us
                )
                error = self._verifier.timed_out(load.extent, self._rules.timeout_us)
                self._break(load, error, is_stuck=True)
            self._show()
        self._engine.give_up(overdue)
        self._engine.cancel(dropped)
