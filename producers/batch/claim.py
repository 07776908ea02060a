"""Holds a batch for one runner, by its record in `rag.batches.v1`. The order of the log decides."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from carpool.clock import Clock
from carpool.errors import ConfigError
from carpool.kafka.records import Message
from producers.batch.batch_log import batch_of, batch_record
from producers.batch.input_file import InputFile
from producers.batch.plan import BatchPlan
from producers.build_query import QueryRecord
from schemas.batch import Batch, State

ALIVE_S = 5.0
"""How often a runner says that it lives."""
DEAD_S = 3 * ALIVE_S
POLL_S = 0.05
SENT_SINCE_MAX = 1_000
"""Lines behind those of its last record that a runner may have sent."""


class Claim:
    """The record of a batch, as its runner writes it. One thread."""

    def __init__(self, plan: BatchPlan, send: Callable[[QueryRecord], None], clock: Clock) -> None:
        self._plan = plan
        self._send = send
        self._clock = clock
        self._runner = str(uuid.uuid4())
        self._batch: Batch
        self._alive_s = 0.0
        self._has_seen_itself = False
        self._displaced = set[str | None]()  # runners before this one
        self.is_lost = False
        """Whether another runner has it."""
        self.is_cancelled = False

    def take(self, source: InputFile, known: Batch | None, ends: Sequence[int]) -> Batch:
        """Names this runner, and returns the record: that of earlier runs, or a new one.

        `ends`: of the partitions of answers, in their order.
        """
        now_ms = self._clock.now_us() // 1_000
        new = Batch(
            batch_id=source.batch_id,
            file=source.facts,
            options=source.options,
            state="stopped",
            starts=tuple(ends),
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        starts = known.starts if known is not None and known.starts else new.starts
        self._batch = replace(known or new, file=source.facts, starts=starts)
        self._state_before = self._batch.state
        for each in self._batch.rounds:
            self._plan.ask_again(each)
        self._publish(replace(self._batch, state="running", runner=self._runner))
        return self._batch

    def say_alive(self, positions: Iterable[int] | None) -> None:
        """Writes the record, if the last one is some seconds old, or many lines were sent since.

        `positions` None: the answers are not read yet, so what earlier runs knew stays.
        """
        sent = self._plan.span()[1] - self._batch.next_line
        if time.monotonic() - self._alive_s < ALIVE_S and sent < SENT_SINCE_MAX // 2:
            return
        if positions is None:
            self._publish(self._batch)
        else:
            self.write("running", positions)

    def give_back(self) -> None:
        """Ends before the answers were read: the record is as before, without a runner."""
        state: State = "stopped" if self._state_before == "running" else self._state_before
        self._publish(replace(self._batch, state=state, runner=None))

    def write(self, state: State, positions: Iterable[int]) -> None:
        """Writes what is known now. A batch that is not `running` has no runner."""
        plan = self._plan
        self._publish(
            replace(
                self._batch,
                state=state,
                runner=self._runner if state == "running" else None,
                positions=tuple(positions),
                rounds=tuple(plan.rounds),
                counts=+plan.counts,
                first_open=plan.span()[0],
                next_line=plan.span()[1],
            )
        )

    def _publish(self, batch: Batch) -> None:
        now_us = self._clock.now_us()
        self._batch = replace(batch, updated_ms=max(now_us // 1_000, batch.updated_ms + 1))
        self._send(batch_record(self._batch, now_us))
        self._alive_s = time.monotonic()

    def follow(self, message: Message) -> None:
        """Takes a record of the topic: of this batch by another runner, or by a command."""
        batch = batch_of(message)
        if batch is None or batch.batch_id != self._batch.batch_id:
            return
        if batch.runner == self._runner:
            self._has_seen_itself = True
        elif not self._has_seen_itself:
            self._displaced.add(batch.runner)
            return
        elif batch.runner is not None:
            self.is_lost = self.is_lost or batch.runner not in self._displaced
            return
        self._batch = replace(self._batch, request=batch.request or self._batch.request)
        for each in batch.rounds[len(self._plan.rounds) :]:
            self._plan.ask_again(each)
            self._alive_s = 0.0  # the command waits to see it in the record
        self.is_cancelled = self.is_cancelled or batch.state == "cancelled"


def wait_for_sign(
    known: Batch, poll: Callable[[float], Sequence[Message]], goes_on: Callable[[], bool]
) -> Batch:
    """Returns the newest record of a batch after no sign of its runner has come for `DEAD_S`.

    Raises `ConfigError` if one has. The time is that of this process alone.
    """
    until_s = time.monotonic() + DEAD_S
    while (left_s := until_s - time.monotonic()) > 0 and goes_on():
        for found in map(batch_of, poll(min(left_s, POLL_S))):
            if found is None or found.batch_id != known.batch_id:
                continue
            if found.state == "cancelled":
                raise ConfigError("the batch was cancelled meanwhile; the same command goes on")
            if found.runner is None:
                return found
            if found.updated_ms != known.updated_ms:
                raise ConfigError(
                    f"another runner works on this batch ({found.batch_id[:8]}): wait for it, end "
                    f"it by `carpool batch cancel {found.batch_id[:8]}`, or take its place with "
                    "--take-over"
                )
            known = found
    return known
