"""Runs a batch: reads which lines are answered, sends the others, and writes their answers.

One thread does all but the sending, which is librdkafka's. Its loop reads, writes what came, says
that it lives, and sends while there is room.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal

from carpool.clock import Clock
from carpool.errors import ConfigError
from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import SilentBrokersError, TopicReader, is_final
from producers.batch.batch_log import read_batches
from producers.batch.claim import POLL_S, SENT_SINCE_MAX, Claim, wait_for_sign
from producers.batch.costs import Costs
from producers.batch.input_file import InputFile
from producers.batch.output_file import OutputFile, line_of
from producers.batch.plan import BatchPlan
from producers.build_query import QueryRecord, build_cancel
from producers.errors import PublishError
from producers.publish_queries import Publisher
from producers.settings import ClientSettings
from schemas.answer import Answer
from schemas.batch import AnswerLine, State
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.topics import ANSWERS, BATCHES, KEY_SEPARATOR

CANCEL_S = 10.0
"""How long the questions in flight may take to end after a cancel."""
READ_AT_ONCE = SENT_AT_ONCE = 500
PAUSE_S = 1.0
"""Pause after the brokers did not take a question."""
FLUSH_S = 10.0
READING = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}
WAITS = "another run of this batch did not end: waiting up to 15 s to see whether it lives"
NOT_THERE = ("generation.model:", "workflow:")
"""How the error of a query begins that names a model or a workflow which the services have not."""

ANSWERED = ("ok", "partial")
End = Literal["done", "stopped", "cancelled", "cap", "sampled", "taken over"]
STATES: dict[End, State] = {"done": "done", "cancelled": "cancelled"}


class BatchRun:
    """A run of a batch, once. Close it.

    To read while it runs: `answered`, by this run, `note`: what it waits for, and
    `is_catching_up`: whether it still reads what is answered. `report` is called often.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        client: ClientSettings,
        clock: Clock,
        source: InputFile,
        output: OutputFile,
        plan: BatchPlan,
        costs: Costs,
        report: Callable[[BatchRun], None],
    ) -> None:
        self._kafka = kafka
        self._clock = clock
        self._source = source
        self._output = output
        output.waits = self._waits
        self._plan = plan
        self._costs = costs
        self._report = report
        self._prefix = source.batch_id + "-"
        self._stop = threading.Event()
        self._failed: queue.SimpleQueue[tuple[int | None, PublishError]] = queue.SimpleQueue()
        self._publisher = Publisher(kafka, client)
        self._reader = TopicReader(kafka, clock, name="batch", config=READING)
        self._claim = Claim(plan, self._publish, clock)
        self._positions: dict[TopicPartition, int] = {}
        self._cancel_until_s: float | None = None
        self._pause_until_s = 0.0
        self.answered = 0
        self.is_catching_up, self._are_there = True, False
        self.note = ""

    def stop(self) -> None:
        """Ends the run soon. From any thread, or a handler of signals."""
        self._stop.set()

    def cancel(self) -> None:
        """Ends the run as `cancelled`, soon. From any thread."""
        self._claim.is_cancelled = True

    def close(self) -> None:
        """Disconnects. Blocks for a moment."""
        self._publisher.close(PAUSE_S)
        self._reader.close()

    def run(self, *, takes_over: bool = False, sample: int | None = None) -> End:
        """Returns how the run ended. Blocks.

        `takes_over`: does not wait to see whether another runner lives. `sample`: asks no more
        lines than it takes to have so many answers, at random. Raises `ConfigError` where
        one does, where the output is of another batch, the input was changed, or a query asks for
        a model or a workflow that is not there; `RetryableError` without brokers.
        """
        if not self._begin(takes_over):
            return "stopped"
        ended: End = "stopped"
        try:
            if self._catch_up():
                self._choose(sample)
                ended = self._work()
            elif self._claim.is_lost:
                ended = "taken over"
            return ended
        finally:
            if self.is_catching_up and not self._claim.is_lost:
                self._claim.give_back()
            elif not self._claim.is_lost:
                self._claim.write(STATES.get(ended, "stopped"), self._positions.values())
            self._publisher.flush(FLUSH_S)

    def _work(self) -> End:
        """Asks the open lines, and returns how that ended."""
        while True:
            self._read()
            if self._claim.is_lost:
                return "taken over"
            self._follow_cancel()
            self._send()
            self._claim.say_alive(self._positions.values())
            self._report(self)
            if (ended := self._end()) is not None:
                return ended

    def _choose(self, sample: int | None) -> None:
        """Lets only so many lines be asked as `sample` answers need."""
        if sample is not None:
            lines = range(1, self._source.facts.lines + 1)
            left = list(filter(self._plan.is_open, lines))
            count = max(0, sample - self._costs.answers)
            self._plan.sample = random.Random(self._prefix).sample(left, min(count, len(left)))

    def _begin(self, takes_over: bool) -> bool:
        """Claims the batch, and begins to follow its record and the answers.

        Returns False where it was stopped before.
        """
        for line in islice(self._output.read(), 1):
            self._check(line)  # before the batch has a record
        answers = self._reader.partitions(ANSWERS.name)
        records = self._reader.partitions(BATCHES.name)
        self._reader.add({at: self._bounds(at)[1] for at in records})
        known = read_batches(self._kafka, self._clock).get(self._source.batch_id)
        if known is not None and known.runner is not None and not takes_over:
            self.note = WAITS
            known = wait_for_sign(known, self._poll_records, lambda: not self._stop.is_set())
            self.note = ""
        if self._stop.is_set():
            return False
        ends = [self._bounds(at)[1] for at in answers]
        starts = self._claim.take(self._source, known, ends).starts
        for place, at in enumerate(answers):
            low, high = self._bounds(at)
            start = starts[place] if place < len(starts) else 0
            self._positions[at] = start if low <= start <= high else low
        self._reader.add(self._positions)
        if known is not None:  # what an earlier run left in flight may be paid twice
            self._costs.twice = range(known.first_open, known.next_line + SENT_SINCE_MAX)
        return True

    def _check(self, line: AnswerLine) -> None:
        """Raises `ConfigError` for a line of another batch."""
        if not (line.id or "").startswith(self._prefix):
            raise ConfigError(
                f"{self._output.path} has answers of another batch: the questions or the options "
                "are others. Give another --out"
            )

    def _waits(self, why: str) -> bool:
        """Tells what the output waits for, and that this runner lives."""
        self.note = why
        self._report(self)
        self._claim.say_alive(None if self.is_catching_up else self._positions.values())
        return not self._stop.is_set()

    def _poll_records(self, wait_s: float) -> Sequence[Message]:
        self._report(self)
        return self._reader.poll(READ_AT_ONCE, wait_s).messages

    def _catch_up(self) -> bool:
        """Reads the answers that there are, in the output and in the log.

        Returns False where it was stopped, or lost the batch.
        """
        if not self._output.begin():
            return False
        for line in self._output.read():
            self._check(line)
            if line.status != "refused":
                self._plan.was_written(line.line, line.status, line.round)
                self._costs.add(line.tokens)
        ends = {at: self._bounds(at)[1] for at in self._positions}
        silent_s, seen_s = self._kafka.request_timeout_ms / 1_000, time.monotonic()
        self.note = "reading which lines are answered"
        while any(self._positions[at] < end for at, end in ends.items()):
            if self._stop.is_set() or self._claim.is_lost:
                return False
            self._claim.say_alive(None)
            if self._read():
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > silent_s:
                raise SilentBrokersError(
                    f"{self._kafka.bootstrap} sent nothing for {silent_s:g} s; is it still running?"
                )
            self._report(self)
        self.note, self.answered, self.is_catching_up = "", 0, False
        return True

    def _read(self) -> bool:
        """Takes what has come, and returns whether anything has."""
        batch = self._reader.poll(READ_AT_ONCE, POLL_S)
        for error in filter(is_final, batch.errors):
            raise self._reader.unreadable(next(iter(self._positions)), error)
        lines = [line for message in batch.messages if (line := self._take(message)) is not None]
        self._output.append(lines)
        self.answered += len(lines)
        for at, end in (*batch.ends.items(), *batch.passed_over.items()):
            self._pass(at, end)
        return bool(batch.messages or batch.ends or batch.passed_over)

    def _pass(self, at: TopicPartition, offset: int) -> None:
        if at in self._positions:
            self._positions[at] = max(self._positions[at], offset)

    def _take(self, message: Message) -> AnswerLine | None:
        """Takes a record, and returns the answer of a line, if it counts."""
        place = message.source
        if place.topic == BATCHES.name:
            self._claim.follow(message)
            return None
        self._pass(TopicPartition(place.topic, place.partition), place.offset + 1)
        key = (message.key or b"").decode(errors="replace")
        number = key.removeprefix(self._prefix).partition(KEY_SEPARATOR)[0]
        if not (key.startswith(self._prefix) and message.value and number.isdecimal()):
            return None
        line = int(number)
        try:
            answer = decode(Answer, message.value, message.headers)
        except RecordError as error:
            raise ConfigError(f"an answer cannot be read ({error}): are versions mixed?") from error
        is_there = answer.error is None or not answer.error.message.startswith(NOT_THERE)
        if answer.status == "cancelled" or (self.is_catching_up and not is_there):
            # It stays open: an earlier cancel, or what was not there, is perhaps over.
            self._costs.add(answer.usage)
            self._not_sent(line)
            self._pause_until_s = time.monotonic() + PAUSE_S
            return None
        if not (is_there or self._are_there):
            why = answer.error.message if answer.error else ""
            raise ConfigError(f"{why}. Nothing more is sent (--model carpool is any model)")
        self._are_there = self._are_there or answer.status in ANSWERED
        round = self._plan.round_of(place.partition, place.offset)
        is_news, counts = self._plan.answered(line, answer.status, round)
        if is_news:
            self._costs.add(answer.usage)
            self._costs.free(line)
        return line_of(self._source, line, answer, round) if counts else None

    def _send(self) -> None:
        """Sends the next lines, as many as may be in flight."""
        while not self._failed.empty():
            line, error = self._failed.get()
            if error.is_final:
                raise error
            if line is not None:
                self._not_sent(line)
            self.note, self._pause_until_s = str(error), time.monotonic() + PAUSE_S
        if time.monotonic() < self._pause_until_s or self._cancel_until_s is not None:
            return
        self.note, self._costs.refused = "", 0.0
        for _ in range(SENT_AT_ONCE):
            if (number := self._plan.find_next()) is None:
                return
            asked = self._source.line(number)
            is_workflow = asked.arguments.get("workflow") is not None
            names_any = is_workflow or asked.generation.model is not None
            if names_any and not self._are_there and self._plan.in_flight:
                return  # the first answer shows whether the services have it
            most = self._costs.prices.most(asked.generation.max_tokens, is_workflow=is_workflow)
            if not self._costs.reserve(number, most):
                return
            self._plan.sent(number)
            now_us = self._clock.now_us() + self._clock.host_lead_us()
            self._publish(asked.record(f"{self._prefix}{number}", now_us), number)

    def _not_sent(self, line: int) -> None:
        """The question of a line is not in flight any more, and has no answer."""
        self._plan.not_sent(line)
        self._costs.free(line)

    def _publish(self, record: QueryRecord, line: int | None = None) -> None:
        """Sends a record; a failure comes back to `_send`."""

        def placed(_: object, error: PublishError | None) -> None:
            if error is not None:
                self._failed.put((line, error))

        try:
            self._publisher.send(record, placed)
        except PublishError as error:
            self._failed.put((line, error))

    def _follow_cancel(self) -> None:
        """Withdraws what is in flight, once the batch is cancelled."""
        if self._claim.is_cancelled and self._cancel_until_s is None:
            self._cancel_until_s = time.monotonic() + CANCEL_S
            self.note, now_us = "cancelled: waiting for what is in flight", self._clock.now_us()
            end = min(self._costs.twice.stop, self._source.facts.lines + 1)
            earlier = range(self._costs.twice.start, end)
            for line in self._plan.in_flight.union(filter(self._plan.is_open, earlier)):
                self._publish(build_cancel(f"{self._prefix}{line}", None, now_us))

    def _end(self) -> End | None:
        """Returns how the run ends now; None: it goes on."""
        plan = self._plan
        if self._stop.is_set():
            return "stopped"
        if (until_s := self._cancel_until_s) is not None:
            return "cancelled" if not plan.in_flight or time.monotonic() >= until_s else None
        if plan.in_flight or not self._failed.empty():
            return None
        if not plan.open:
            return "done"
        if plan.sample is not None and plan.find_next() is None:
            return "sampled"
        return "cap" if self._costs.refused else None

    def _bounds(self, at: TopicPartition) -> tuple[int, int]:
        return self._reader.bounds(at, patience_s=self._kafka.request_timeout_ms / 1_000)
