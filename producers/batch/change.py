"""Commands that cancel a batch, or ask lines of it again. Its runner follows them, or the next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import zip_longest

from msgspec.structs import replace

from carpool.clock import Clock
from carpool.errors import ConfigError, RetryableError
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from producers.batch.batch_log import batch_of, batch_record
from producers.batch.claim import SENT_SINCE_MAX
from producers.batch.plan import ROUNDS_MAX
from producers.build_query import QueryRecord, build_cancel
from producers.errors import PublishError
from producers.publish_queries import Publisher
from producers.settings import ClientSettings
from schemas.answer import Status
from schemas.batch import Batch, Round, State
from schemas.topics import ANSWERS, BATCHES

RUNNER_S = 12.0
"""How long a runner has to do what a command wants."""
WITHDRAWN_MAX = 100_000


class BatchCommands:
    """Changes batches for one command. Every call blocks. Close it."""

    def __init__(self, kafka: KafkaSettings, client: ClientSettings, clock: Clock) -> None:
        self._kafka = kafka
        self._clock = clock
        self._timeout_s = client.publish_timeout_ms / 1_000
        self._publisher = Publisher(kafka, client)
        self._reader = TopicReader(kafka, clock, name="batches")
        self._errors: list[PublishError] = []

    def close(self) -> None:
        """Disconnects."""
        self._publisher.close(self._timeout_s)
        self._reader.close()

    def retry(self, batch: Batch, statuses: Sequence[Status]) -> Batch:
        """Lets lines with these statuses be asked again, by the runner or by the next run.

        Raises `ConfigError` after too many retries, `RetryableError` without brokers.
        """
        if len(batch.rounds) >= ROUNDS_MAX:
            raise ConfigError(f"the batch was retried {ROUNDS_MAX} times, which is the most")
        ends = [self._reader.bounds(at)[1] for at in self._reader.partitions(ANSWERS.name)]
        read = zip_longest(ends, batch.positions, fillvalue=0)  # a broker may be behind
        round = Round(statuses=tuple(statuses), ends=tuple(max(pair) for pair in read))
        rounds = (*batch.rounds, round)
        state: State = "stopped" if batch.state == "done" else batch.state
        changed = self._change(replace(batch, rounds=rounds, state=state))
        if len(changed.rounds) < len(rounds):  # its runner ended meanwhile
            changed = self._write(replace(changed, rounds=rounds, state="stopped"))
        return changed

    def cancel(self, batch: Batch) -> Batch:
        """Ends a batch: its runner sends no more, and what is in flight is withdrawn.

        Without a runner that answers, the questions that may be in flight are withdrawn here.
        Raises `ConfigError` for a batch that is done, `RetryableError` without brokers.
        """
        if batch.state == "done":
            raise ConfigError(f"batch {batch.batch_id[:8]} is done: every question has its answer")
        changed = self._change(replace(batch, state="cancelled"), until_it_ends=True)
        if batch.runner is not None and changed.runner is None:
            return changed
        last = min(batch.next_line + SENT_SINCE_MAX, batch.file.lines + 1)
        for line in range(batch.first_open, min(last, batch.first_open + WITHDRAWN_MAX)):
            query_id = f"{batch.batch_id}-{line}"
            self._send(build_cancel(query_id, None, self._clock.now_us()))
        return self._write(replace(changed, runner=None))

    def _change(self, batch: Batch, *, until_it_ends: bool = False) -> Batch:
        """Writes a record, and returns what its runner makes of it; else the record itself."""
        records = self._reader.partitions(BATCHES.name)
        self._reader.add({at: self._reader.bounds(at)[1] for at in records})
        self._write(batch)
        until_s = time.monotonic() + RUNNER_S
        while batch.runner is not None and time.monotonic() < until_s:
            for found in map(batch_of, self._reader.poll(100, 0.1).messages):
                if found is None or found.batch_id != batch.batch_id:
                    continue
                has_followed = not until_it_ends and len(found.rounds) >= len(batch.rounds)
                if found.updated_ms != batch.updated_ms and (found.runner is None or has_followed):
                    return found
        return batch

    def _write(self, batch: Batch) -> Batch:
        self._send(batch_record(batch, self._clock.now_us()))
        left = self._publisher.flush(self._timeout_s)
        if left or self._errors:
            why = self._errors.pop() if self._errors else "the brokers did not answer in time"
            raise RetryableError(f"the batch was not changed: {why}")
        return batch

    def _send(self, record: QueryRecord) -> None:
        self._publisher.send(record, lambda _, error: self._errors.extend([error] if error else ()))
