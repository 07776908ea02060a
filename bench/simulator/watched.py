"""What the searcher's own seams, engine and event log, tell of the reads of a real run."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.simulator.stopwatch import Call, Stopwatch
from schemas.record import ClusterId
from searcher.events import Purpose
from searcher.store.engine import BlockEngine, BlockError, BlockRead, OnDone


class BlockNote(NamedTuple):
    """A block that was read: asked for, given to the kernel, and told of, in microseconds of the
    performance counter.
    """

    size_bytes: int
    pieces: int
    asked_us: float
    given_us: float
    ended_us: float


class WatchedEngine:
    """Implements `BlockEngine` by another one. `notes`: of each block that was read, in the order
    of the calls of `end_block`.
    """

    def __init__(self, engine: BlockEngine, watch: Stopwatch, notes: list[BlockNote]) -> None:
        self._engine = engine
        self._watch = watch
        self._notes = notes
        self._asked: dict[int, tuple[BlockRead, float]] = {}

    def start(self, on_done: OnDone) -> None:
        """Starts; each call of `on_done` is written down as `end_block`."""
        end_block = self._watch.timed("end_block", on_done)

        def noted(token: int, error: BlockError | None, latency_us: int) -> None:
            ended_us = time.perf_counter() * 1e6
            read, asked_us = self._asked.pop(token)
            self._notes.append(
                BlockNote(
                    read.size_bytes, len(read.buffers), asked_us, ended_us - latency_us, ended_us
                )
            )
            end_block(token, error, latency_us)

        self._engine.start(noted)

    def submit(self, reads: Sequence[BlockRead]) -> None:
        """Takes in reads."""
        now_us = time.perf_counter() * 1e6
        self._asked.update((read.token, (read, now_us)) for read in reads)
        self._engine.submit(reads)

    def cancel(self, tokens: Sequence[int]) -> None:
        """Drops what the kernel has not got."""
        self._engine.cancel(tokens)

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes demands of prefetches."""
        self._engine.promote(tokens)

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """Returns the reads that the kernel has had for long."""
        return self._engine.with_kernel_since(before_us)

    def give_up(self, tokens: Sequence[int]) -> None:
        """Counts these reads no longer."""
        self._engine.give_up(tokens)

    def close(self, timeout_s: float) -> bool:
        """Ends the engine."""
        return self._engine.close(timeout_s)


class ReadEnds:
    """An `EventLog`: writes down as `told` when the end of each read is about to be told."""

    def __init__(self, watch: Stopwatch) -> None:
        self._told = watch.calls.setdefault("told", [])

    def read(self, cluster: ClusterId, purpose: Purpose, started_us: int, ended_us: int) -> None:
        """Writes down the moment."""
        self._told.append(Call(time.perf_counter() * 1e6, 0.0, threading.get_ident()))

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        """Does nothing."""
