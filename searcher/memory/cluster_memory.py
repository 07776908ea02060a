"""Which clusters are in memory: the arena they lie in, and the reads that bring them there,
verified page by page.

It decides nothing: whoever calls has made sure that there is room, and says what to read and what
to forget. One lock, held for bookkeeping only; pages are verified on the engine's threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from carpool.clock import Clock
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
    cluster_pages,
    damage,
    of_cluster,
    spans_bytes,
    split,
    timed_out,
)
from searcher.plan.slices import SliceId
from searcher.store.engine import BlockEngine, BlockError, BlockRead, CancelledRead

__all__ = ["ClusterMemory", "MemoryEvent", "ReadBroke", "ReadDone", "ReadRules", "SpaceFreed"]

_log = structlog.get_logger(__name__)


class ClusterMemory:
    """Clusters in an arena. Any thread may call; nothing here blocks but `close`.

    `extents` are indexed by cluster, or by slice (`Slices`): then a slice's number stands for a
    cluster in every call. `paths` (the names in errors) are indexed by segment. It owns arena and
    engine from now on, and starts the engine with `start`; the engine's files are closed by whoever
    opened them, after `close` has returned True.
    """

    def __init__(
        self,
        *,
        layout: PageLayout,
        extents: Sequence[ClusterExtent],
        build_id: int,
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
        self._build_id = build_id
        self._paths = paths
        self._arena = arena
        self._engine = engine
        self._rules = rules
        self._read_bytes = rules.block_bytes_max // layout.page_bytes * layout.page_bytes
        self._metrics = metrics
        self._clock = clock
        self._event_log = events
        self._changed = threading.Condition()
        self._loading: dict[SliceId, Load] = {}
        self._stuck: list[Load] = []
        self._resident: dict[SliceId, tuple[Spans, ClusterPages]] = {}
        self._blocks: dict[int, Block] = {}  # by token, until told
        self._next_token = 1
        self._last_end_us = clock.now_us()
        self._outbox: deque[MemoryEvent] = deque()
        self._is_telling = False
        self._is_closed = False
        self._watchdog = threading.Thread(target=self._watch, name="read-watchdog", daemon=True)
        metrics.searcher.budget_bytes.set(arena.size_bytes)
        purposes: tuple[Purpose, ...] = ("demand", "prefetch")
        self._bytes_read = {
            purpose: metrics.searcher.bytes_read.labels(purpose=purpose) for purpose in purposes
        }
        self._gauges = {
            kind: metrics.searcher.resident_bytes.labels(kind=kind)
            for kind in ("resident", "in_flight", "stuck")
        }

    def start(self, on_event: Callable[[MemoryEvent], None]) -> None:
        """Starts reading. `on_event` is told the end of every read exactly once, one event at a
        time, in order.

        On one of the engine's threads, or on the one that gives up reads; it may call everything
        here but `close`.
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
            return sum(load.arena_bytes for load in self._stuck)

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that are not free."""
        with self._changed:
            return self._arena.size_bytes - self._arena.free_bytes

    def read_bytes(self, cluster: SliceId) -> int:
        """Returns what reading a cluster takes off the disk: its pages."""
        return self._extents[cluster].size_bytes

    def arena_bytes(self, cluster: SliceId) -> int:
        """Returns what a cluster takes of the arena: its pages, in whole blocks."""
        return self._arena.blocks_bytes(self._extents[cluster].size_bytes)

    def begin_read(self, cluster: SliceId, *, is_prefetch: bool) -> None:
        """Starts to read a cluster that is not here; there must be room. Ignored after `close`."""
        extent = self._extents[cluster]
        with self._changed:
            if self._is_closed:
                return
            assert cluster not in self._loading, f"cluster {cluster} is being read already"
            assert cluster not in self._resident, f"cluster {cluster} is in memory already"
            spans = self._arena.allocate(extent.size_bytes)
            assert spans is not None, (
                f"no room for cluster {cluster} in {self._arena.free_bytes} bytes: the plan is "
                "overdrawn"
            )
            purpose: Purpose = "prefetch" if is_prefetch else "demand"
            load = Load(
                number=cluster,
                extent=extent,
                purpose=purpose,
                spans=spans,
                started_us=self._clock.now_us(),
            )
            self._loading[cluster] = load
            reads = [
                self._block_read(
                    Block(load=load, start_bytes=start_bytes, buffers=buffers), is_prefetch
                )
                for start_bytes, buffers in split(
                    self._arena.views(spans), extent.size_bytes, self._read_bytes
                )
            ]
            self._show()
        self._engine.submit(reads)

    def promote(self, cluster: SliceId) -> None:
        """A query wants what is read ahead: its reads go before those that nobody wants yet.
        Another cluster is passed over.
        """
        with self._changed:
            load = self._loading.get(cluster)
            tokens = tuple(load.tokens) if load is not None else ()
        self._engine.promote(tokens)

    def cancel(self, cluster: SliceId) -> None:
        """Nobody wants this read any more. It ends with `CancelledRead`, or well where all of it
        was under way.

        A cluster that is not being read is passed over.
        """
        with self._changed:
            load = self._loading.get(cluster)
            if load is not None:
                load.is_cancelled = True
            tokens = tuple(load.tokens) if load is not None else ()
        self._engine.cancel(tokens)

    def evict(self, cluster: SliceId) -> None:
        """Forgets a cluster that is in memory; its pages must not be used any more."""
        with self._changed:
            spans, _ = self._resident.pop(cluster)
            self._arena.free(spans)
            self._show()

    def pages(self, cluster: SliceId) -> ClusterPages:
        """Returns the pages of a cluster that is in memory, read-only, valid until it is
        evicted.
        """
        return self._resident[cluster][1]  # one step of the interpreter: needs no lock

    def residents(self) -> frozenset[SliceId]:
        """Returns the clusters that are in memory, whole."""
        with self._changed:
            return frozenset(self._resident)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books and the arena's differ."""
        with self._changed:
            self._arena.check_integrity()
            spans = [spans for spans, _ in self._resident.values()]
            spans += [load.spans for load in (*self._loading.values(), *self._stuck)]
            assert self._arena.free_bytes + sum(map(spans_bytes, spans)) == self._arena.size_bytes
            loads = (*self._loading.values(), *self._stuck)
            assert sorted(self._blocks) == sorted(token for load in loads for token in load.tokens)
            assert all(load.tokens for load in loads), "a read has nothing left to wait for"

    def close(self, timeout_s: float) -> bool:
        """Ends all reads and lets go of the memory; blocks for up to `timeout_s`, and as long again
        for an event that is being told.

        No event is told from now on. Returns whether that was told and the kernel has given back
        everything: the files must not be closed before.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            is_told = self._changed.wait_for(lambda: not self._is_telling, timeout=timeout_s)
        has_ended = self._engine.close(timeout_s if is_told else 0.0) and is_told
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
        """A block read has ended; on the engine's thread."""
        with self._changed:
            block = self._blocks[token]
        load = block.load
        if error is None:
            self._bytes_read[load.purpose].inc(sum(buffer.nbytes for buffer in block.buffers))
            error = self._check(block)
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
        self._tell()

    def _check(self, block: Block) -> BlockError | None:
        path = self._paths[block.load.extent.segment]
        try:
            return damage(block, self._layout, build_id=self._build_id, path=path)
        except (
            Exception
        ) as error:  # also a fault of our own must not leave anybody waiting for ever
            _log.exception("pages could not be checked", path=path)
            return RetryableError(f"pages of {path} could not be checked: {error!r}")

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
        following = Block(
            load=load,
            start_bytes=block.start_bytes,
            buffers=block.buffers,
            attempt=block.attempt + 1,
        )
        return self._block_read(following, False)  # it waited once already

    def _end_load(self, load: Load) -> None:
        cluster = load.number
        now_us = self._clock.now_us()
        if load.is_stuck:
            self._stuck.remove(load)
            self._arena.free(load.spans)
            self._outbox.append(SpaceFreed(slice_id=cluster))
        else:
            del self._loading[cluster]
            self._event_log.read(
                ClusterId(load.extent.cluster), load.purpose, load.started_us, now_us
            )
            if load.error is None:
                self._resident[cluster] = (
                    load.spans,
                    cluster_pages(load.extent, self._layout, self._arena.views(load.spans)),
                )
                self._outbox.append(ReadDone(slice_id=cluster, latency_us=now_us - load.started_us))
            else:
                self._arena.free(load.spans)
                self._break(load, load.error, is_stuck=False)
        self._show()

    def _break(self, load: Load, error: BlockError, *, is_stuck: bool) -> None:
        cluster = load.extent.cluster
        if isinstance(error, CorruptionError):
            self._metrics.searcher.clusters_damaged.inc()
            _log.error("cluster damaged", cluster=cluster, error=str(error))
        elif not isinstance(error, CancelledRead):
            _log.error("cluster not read", cluster=cluster, error=str(error))
        self._outbox.append(ReadBroke(slice_id=load.number, error=error, is_stuck=is_stuck))

    def _tell(self) -> None:
        """Tells what is to be told, unless another thread is at it: one event at a time, in
        order.
        """
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
                _log.exception("the end of a read could not be told", slice=event.slice_id)
            finally:
                self._end_telling()

    def _end_telling(self) -> None:
        with self._changed:
            self._is_telling = False
            if self._is_closed:  # who closes waits for this
                self._changed.notify_all()

    def _show(self) -> None:
        reading_bytes = sum(load.arena_bytes for load in self._loading.values())
        stuck_bytes = sum(load.arena_bytes for load in self._stuck)
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
        """Breaks what the kernel has had since before `before_us`; and, if nothing at all has ended
        since then, what waits.
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
                cluster = load.number
                load.is_stuck = True
                del self._loading[cluster]
                self._stuck.append(load)
                dropped.extend(load.tokens)
                self._event_log.read(
                    ClusterId(load.extent.cluster),
                    load.purpose,
                    load.started_us,
                    self._clock.now_us(),
                )
                self._break(
                    load,
                    timed_out(
                        load.extent, self._paths[load.extent.segment], self._rules.timeout_us
                    ),
                    is_stuck=True,
                )
            self._show()
        self._engine.give_up(overdue)
        self._engine.cancel(dropped)
