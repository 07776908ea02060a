"""Which clusters are in memory: the arena they lie in, and the reads that bring them there, verified page by page.

It decides nothing: whoever calls has made sure that there is room, and says what to read and what to forget. One lock, held
for bookkeeping only; pages are verified on the engine's threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog

from carpool.clock import Clock
from carpool.disk.pages import ClusterPages, PageLayout, UInt8
from carpool.disk.segments import ClusterExtent, verify_pages
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cache.arena import Arena, Spans
from searcher.events import EventLog
from searcher.plan.steps import Purpose
from searcher.store.engine import READ_BYTES_MAX, BlockEngine, BlockError, BlockRead, CancelledRead

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadDone:
    """A cluster is in memory, whole and undamaged."""

    cluster: ClusterId
    latency_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBroke:
    """A read was given up, or cancelled. `is_stuck`: its memory is still the kernel's, and comes back as `SpaceFreed`."""

    cluster: ClusterId
    error: BlockError
    is_stuck: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceFreed:
    """The memory of a stuck read came back: the kernel has ended the last piece of it."""

    cluster: ClusterId


MemoryEvent = ReadDone | ReadBroke | SpaceFreed


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRules:
    """`attempts` at a block; after `timeout_us` with the kernel a read is given up; blocks of at most `block_bytes_max`.

    Whether one has to be given up is looked at every `watch_us`.
    """

    attempts: int
    timeout_us: int
    block_bytes_max: int = READ_BYTES_MAX
    watch_us: int = 500_000


@dataclass(kw_only=True, slots=True)
class _Load:
    """A cluster that is being read, or was given up and has not come back (`is_stuck`)."""

    extent: ClusterExtent
    purpose: Purpose
    spans: Spans
    started_us: int
    tokens: set[int] = field(default_factory=set)
    error: BlockError | None = None
    is_cancelled: bool = False
    is_stuck: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """A piece of a load, `start_bytes` into the cluster, and which attempt at it this is."""

    load: _Load
    start_bytes: int
    buffers: tuple[memoryview, ...]
    attempt: int = 1


class ClusterMemory:
    """Clusters in an arena. Any thread may call; nothing here blocks but `close`.

    `extents` are indexed by cluster, `paths` (the names in errors) by segment. It owns arena and engine from now on, and starts
    the engine with `start`; the engine's files are closed by whoever opened them, after `close` has returned True.
    """

    def __init__(
        self,
        *,
        layout: PageLayout,
        extents: Sequence[ClusterExtent],
        generation: int,
        paths: Sequence[str],
        arena: Arena,
        engine: BlockEngine,
        rules: ReadRules,
        metrics: Metrics,
        clock: Clock,
        events: EventLog,
    ) -> None:
        assert arena.block_bytes % layout.page_bytes == 0, "a page would straddle two blocks"
        assert rules.block_bytes_max >= layout.page_bytes, "a read would not hold a page"
        self._layout = layout
        self._extents = extents
        self._generation = generation
        self._paths = paths
        self._arena = arena
        self._engine = engine
        self._rules = rules
        self._metrics = metrics
        self._clock = clock
        self._event_log = events
        self._changed = threading.Condition()
        self._loading: dict[ClusterId, _Load] = {}
        self._stuck: list[_Load] = []
        self._resident: dict[ClusterId, tuple[Spans, ClusterPages]] = {}
        self._blocks: dict[int, _Block] = {}  # by token, until told
        self._next_token = 1
        self._last_end_us = clock.now_us()
        self._outbox: deque[MemoryEvent] = deque()
        self._is_telling = False
        self._is_closed = False
        self._watchdog = threading.Thread(target=self._watch, name="read-watchdog", daemon=True)
        metrics.budget_bytes.set(arena.size_bytes)
        self._gauges = {kind: metrics.resident_bytes.labels(kind=kind) for kind in ("resident", "in_flight", "stuck")}

    def start(self, on_event: Callable[[MemoryEvent], None]) -> None:
        """Starts reading. `on_event` is told the end of every read exactly once, one event at a time, in order.

        On one of the engine's threads; it may call everything here but `close`.
        """
        self._on_event = on_event
        self._engine.start(self._end_block)
        self._watchdog.start()

    # ---- what the planner's driver calls

    @property
    def arena_bytes_total(self) -> int:
        """Bytes of the arena: the budget."""
        return self._arena.size_bytes

    @property
    def stuck_bytes(self) -> int:
        """Bytes of reads that were given up and have not come back."""
        with self._changed:
            return sum(_size_bytes(load.spans) for load in self._stuck)

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that are not free."""
        with self._changed:
            return self._arena.size_bytes - self._arena.free_bytes

    def read_bytes(self, cluster: ClusterId) -> int:
        """Returns what reading a cluster takes off the disk: its pages."""
        return self._extents[cluster].size_bytes

    def arena_bytes(self, cluster: ClusterId) -> int:
        """Returns what a cluster takes of the arena: its pages, in whole blocks."""
        return self._arena.blocks_bytes(self._extents[cluster].size_bytes)

    def begin_read(self, cluster: ClusterId, *, is_prefetch: bool) -> None:
        """Starts to read a cluster that is not here; there must be room. Ignored after `close`."""
        extent = self._extents[cluster]
        with self._changed:
            if self._is_closed:
                return
            assert cluster not in self._loading, f"cluster {cluster} is being read already"
            assert cluster not in self._resident, f"cluster {cluster} is in memory already"
            spans = self._arena.allocate(extent.size_bytes)
            assert spans is not None, (
                f"no room for cluster {cluster} in {self._arena.free_bytes} bytes: the plan is overdrawn"
            )
            purpose: Purpose = "prefetch" if is_prefetch else "demand"
            load = _Load(extent=extent, purpose=purpose, spans=spans, started_us=self._clock.now_us())
            self._loading[cluster] = load
            reads = [
                self._block_read(_Block(load=load, start_bytes=start_bytes, buffers=buffers), is_prefetch)
                for start_bytes, buffers in self._split(load)
            ]
            self._show()
        self._engine.submit(reads)

    def promote(self, cluster: ClusterId) -> None:
        """A query wants what is read ahead: its reads go before those that nobody wants yet. Another cluster is passed over."""
        with self._changed:
            load = self._loading.get(cluster)
            tokens = tuple(load.tokens) if load is not None else ()
        self._engine.promote(tokens)

    def cancel(self, cluster: ClusterId) -> None:
        """Nobody wants this read any more. It ends with `CancelledRead`, or well where all of it was under way.

        A cluster that is not being read is passed over.
        """
        with self._changed:
            load = self._loading.get(cluster)
            if load is not None:
                load.is_cancelled = True
            tokens = tuple(load.tokens) if load is not None else ()
        self._engine.cancel(tokens)

    def evict(self, cluster: ClusterId) -> None:
        """Forgets a cluster that is in memory; its pages must not be used any more."""
        with self._changed:
            spans, _ = self._resident.pop(cluster)
            self._arena.free(spans)
            self._show()

    def pages(self, cluster: ClusterId) -> ClusterPages:
        """Returns the pages of a cluster that is in memory, read-only, valid until it is evicted."""
        with self._changed:
            return self._resident[cluster][1]

    def residents(self) -> frozenset[ClusterId]:
        """Returns the clusters that are in memory, whole."""
        with self._changed:
            return frozenset(self._resident)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books and the arena's differ."""
        with self._changed:
            self._arena.check_integrity()
            spans = [spans for spans, _ in self._resident.values()]
            spans += [load.spans for load in (*self._loading.values(), *self._stuck)]
            assert self._arena.free_bytes + sum(map(_size_bytes, spans)) == self._arena.size_bytes
            loads = (*self._loading.values(), *self._stuck)
            assert sorted(self._blocks) == sorted(token for load in loads for token in load.tokens)
            assert all(load.tokens for load in loads), "a read has nothing left to wait for"

    def close(self, timeout_s: float) -> bool:
        """Ends all reads and lets go of the memory; blocks for up to `timeout_s`. No event is told from now on.

        Returns whether the kernel has given back everything: until then the files must not be closed.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        has_ended = self._engine.close(timeout_s)
        with self._changed:
            self._resident.clear()
            if has_ended:
                self._arena.close()
        return has_ended

    # ---- reads

    def _split(self, load: _Load) -> Iterator[tuple[int, tuple[memoryview, ...]]]:
        """Yields (start in the cluster, buffers) of each block read: whole pages, at most `block_bytes_max`."""
        page_bytes = self._layout.page_bytes
        read_bytes = self._rules.block_bytes_max // page_bytes * page_bytes
        left_bytes = load.extent.size_bytes
        start_bytes, gathered_bytes = 0, 0
        buffers: list[memoryview] = []
        for view in self._arena.views(load.spans):
            at_bytes, end_bytes = 0, min(view.nbytes, left_bytes)
            left_bytes -= end_bytes
            while at_bytes < end_bytes:
                buffer = view[at_bytes : min(end_bytes, at_bytes + read_bytes - gathered_bytes)]
                buffers.append(buffer)
                at_bytes += buffer.nbytes
                gathered_bytes += buffer.nbytes
                if gathered_bytes == read_bytes:
                    yield start_bytes, tuple(buffers)
                    start_bytes += gathered_bytes
                    buffers, gathered_bytes = [], 0
        if buffers:
            yield start_bytes, tuple(buffers)

    def _block_read(self, block: _Block, is_prefetch: bool) -> BlockRead:
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
        """A block read has ended; on the engine's thread."""
        with self._changed:
            block = self._blocks[token]
        load = block.load
        if error is None:
            purpose, size_bytes = load.purpose, sum(buffer.nbytes for buffer in block.buffers)
            self._metrics.bytes_read.labels(purpose=purpose).inc(size_bytes)
            error = self._damage(block)
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
                    load.error = _of_cluster(error, load.extent.cluster)
                    dropped = tuple(load.tokens)
            if not load.tokens:
                self._end_load(load)
        if again:
            self._engine.submit(again)
        if dropped:
            self._engine.cancel(dropped)
        self._tell()

    def _damage(self, block: _Block) -> CorruptionError | None:
        load, page_bytes = block.load, self._layout.page_bytes
        start_bytes = block.start_bytes
        for buffer in block.buffers:
            pages: UInt8 = np.frombuffer(buffer, dtype=np.uint8).reshape(-1, page_bytes)
            try:
                verify_pages(
                    pages,
                    load.extent,
                    generation=self._generation,
                    path=self._paths[load.extent.segment],
                    first_page=start_bytes // page_bytes,
                )
            except CorruptionError as error:
                return error.with_traceback(None)  # a traceback would hold the pages
            start_bytes += buffer.nbytes
        return None

    def _may_retry(self, block: _Block, error: BlockError) -> bool:
        is_over = block.load.is_cancelled or block.load.is_stuck or self._is_closed
        return isinstance(error, RetryableError) and block.attempt < self._rules.attempts and not is_over

    def _try_again(self, block: _Block, error: BlockError) -> BlockRead:
        load = block.load
        _log.warning("read failed", cluster=load.extent.cluster, attempt=block.attempt, error=str(error))
        following = _Block(load=load, start_bytes=block.start_bytes, buffers=block.buffers, attempt=block.attempt + 1)
        return self._block_read(following, False)  # it waited once already

    def _end_load(self, load: _Load) -> None:
        cluster = ClusterId(load.extent.cluster)
        now_us = self._clock.now_us()
        if load.is_stuck:
            self._stuck.remove(load)
            self._arena.free(load.spans)
            self._outbox.append(SpaceFreed(cluster=cluster))
        else:
            del self._loading[cluster]
            self._event_log.read(cluster, load.purpose, load.started_us, now_us)
            if load.error is None:
                self._resident[cluster] = (load.spans, self._pages(load))
                self._outbox.append(ReadDone(cluster=cluster, latency_us=now_us - load.started_us))
            else:
                self._arena.free(load.spans)
                self._break(cluster, load.error, is_stuck=False)
        self._show()

    def _pages(self, load: _Load) -> ClusterPages:
        pieces = []
        left_bytes = load.extent.size_bytes
        for view in self._arena.views(load.spans):
            used = view[:left_bytes].toreadonly()
            left_bytes -= used.nbytes
            pieces.append(np.frombuffer(used, dtype=np.uint8).reshape(-1, self._layout.page_bytes))
        return ClusterPages(load.extent.cluster, self._layout, load.extent.row_count, tuple(pieces))

    def _break(self, cluster: ClusterId, error: BlockError, *, is_stuck: bool) -> None:
        if isinstance(error, CorruptionError):
            self._metrics.clusters_damaged.inc()
            _log.error("cluster damaged", cluster=cluster, error=str(error))
        elif not isinstance(error, CancelledRead):
            _log.error("cluster not read", cluster=cluster, error=str(error))
        self._outbox.append(ReadBroke(cluster=cluster, error=error, is_stuck=is_stuck))

    def _tell(self) -> None:
        """Tells what is to be told, unless another thread is at it: one event at a time, in order."""
        while True:
            with self._changed:
                if self._is_telling or not self._outbox:
                    return
                event = self._outbox.popleft()
                if self._is_closed:
                    continue
                self._is_telling = True
            try:
                self._on_event(event)
            except Exception:  # reading goes on, whatever became of the listener
                _log.exception("the end of a read could not be told", cluster=event.cluster)
            finally:
                with self._changed:
                    self._is_telling = False

    def _show(self) -> None:
        reading_bytes = sum(_size_bytes(load.spans) for load in self._loading.values())
        stuck_bytes = sum(_size_bytes(load.spans) for load in self._stuck)
        used_bytes = self._arena.size_bytes - self._arena.free_bytes
        self._gauges["resident"].set(used_bytes - reading_bytes - stuck_bytes)
        self._gauges["in_flight"].set(reading_bytes)
        self._gauges["stuck"].set(stuck_bytes)

    # ---- reads that never return

    def _watch(self) -> None:
        period_s = self._rules.watch_us / 1_000_000
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, timeout=period_s)
                if self._is_closed:
                    return
            self._give_up(self._clock.now_us() - self._rules.timeout_us)
            self._tell()

    def _give_up(self, before_us: int) -> None:
        """Breaks what the kernel has had since before `before_us`; and, if nothing at all has ended since then, what waits."""
        overdue = self._engine.with_kernel_since(before_us)
        dropped: list[int] = []
        with self._changed:
            loads = {
                id(self._blocks[token].load): self._blocks[token].load for token in overdue if token in self._blocks
            }
            if self._last_end_us < before_us:
                loads |= {id(load): load for load in self._loading.values() if load.started_us < before_us}
            for load in loads.values():
                if load.is_stuck:
                    continue
                cluster = ClusterId(load.extent.cluster)
                load.is_stuck = True
                del self._loading[cluster]
                self._stuck.append(load)
                dropped.extend(load.tokens)
                self._event_log.read(cluster, load.purpose, load.started_us, self._clock.now_us())
                self._break(cluster, self._timed_out(load), is_stuck=True)
            self._show()
        self._engine.give_up(overdue)
        self._engine.cancel(dropped)

    def _timed_out(self, load: _Load) -> RetryableError:
        path, timeout_s = self._paths[load.extent.segment], self._rules.timeout_us / 1_000_000
        return RetryableError(
            f"cluster {load.extent.cluster} at byte {load.extent.offset_bytes} of {path} did not come within {timeout_s:g} s: "
            "the disk hangs, or is too slow. The memory of this read stays out of use until the kernel returns it. Check the "
            "disk; if it is only slow, raise [searcher] read_timeout_ms"
        )


def _size_bytes(spans: Spans) -> int:
    return sum(span.size_bytes for span in spans)


def _of_cluster(error: BlockError, cluster: int) -> BlockError:
    """Returns the error with the cluster's number in it."""
    message = str(error)
    if f"cluster {cluster} " in message or isinstance(error, CancelledRead):
        return error
    message = f"cluster {cluster} could not be read: {message}"
    if isinstance(error, CorruptionError):
        return CorruptionError(message, path=error.path, offset_bytes=error.offset_bytes)
    return RetryableError(message)
