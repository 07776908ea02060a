"""The transactional Kafka producer over librdkafka, and the fencing of another member."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage

from carpool.errors import AbortedError, CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.client_config import producer_config
from carpool.kafka.clients import Membership, Position
from carpool.kafka.fencing import transactional_id
from carpool.kafka.librdkafka.convert import (
    FAULTS,
    KINDS,
    StructlogBridge,
    fatal_cause,
    raw_offsets,
    sort_error,
)
from carpool.kafka.librdkafka.producer import produce_arguments
from carpool.kafka.records import Output, TopicPartition
from carpool.kafka.settings import KafkaSettings

log = structlog.get_logger()

TRANSACTION_TIMEOUT_MS = 60_000
"""How long a transaction may be open. It must exceed the restart of a broker, because an expired
transaction fences its member. A dead member's transaction ends earlier: the new owner fences it.
"""

FULL_QUEUE_POLL_S = 0.01
RENEW_AFTER_S = 3_600.0
"""After so long without a transaction a new producer takes the id, before brokers forget it."""
REPORT_WAIT_S = 0.1
"""How long to wait for the delivery report that explains a failed transaction: it may come later.
"""
ABORT_FLUSH_S = 1.0
"""How long an abort waits for produced records.

librdkafka may end a transaction before the coordinator has begun it, and the coordinator then
answers with a fatal error (librdkafka issue 4849).
"""


BROKE_WHILE_UP = " in state UP"
"""What librdkafka says of a connection that was open; requests that timed out close it too."""
LOG_LEVEL_MIN = 6
"""The level of these lines."""


class _BrokenConnections(StructlogBridge):
    """Notices in the log lines of a producer that a connection broke which carried requests.

    librdkafka sends such requests again, and says so nowhere else when other brokers are up. It
    leaves out a line that repeats another one of the last 30 seconds, so after the first one this
    producer must be replaced.
    """

    def __init__(self) -> None:
        self.any = False

    def log(self, level: int, message: str, *args: Any) -> None:
        line = message % args if args else message
        if line.startswith("FAIL ") and BROKE_WHILE_UP in line:
            self.any = True
        super().log(level, line)


class _UnforeseenError(AbortedError):
    """An error that is neither retriable nor fatal nor requires an abort."""


class LibrdkafkaTransactionalProducer:
    """A `TransactionalProducerClient` over a real broker.

    Calls block for `request_timeout_ms`, `abort` a second longer. A repeated call waits for the
    operation that librdkafka continued in the background.
    """

    def __init__(self, settings: KafkaSettings, transactional_id: str) -> None:
        """Connects lazily."""
        self._settings = settings
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._config = producer_config(settings) | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "log.connection.close": True,
        }
        self._config["log_level"] = max(LOG_LEVEL_MIN, int(self._config.get("log_level", 0)))
        self._producer = self._make()
        self._refused: DeploymentError | None = None
        self._fenced: FencedError | None = None
        self._is_spent = False  # this producer cannot be used any more
        self._has_id = False
        self._needs: set[str] = set()  # rights on topics, of the transaction
        self._used_s = time.monotonic()

    def _make(self) -> Producer:
        self._connections = _BrokenConnections()
        return Producer(self._config, logger=self._connections)

    def start(self) -> None:
        """Takes the transactional id. What would abort a transaction passes: none is open."""
        try:
            self._take_id()
        except (AbortedError, RetryableError) as error:
            name = self._config["transactional.id"]
            raise RetryableError(f"transactional id {name} could not be taken: {error}") from error

    def _take_id(self) -> None:
        """Takes the transactional id, with a new producer if this one is spent.

        After an error, call it again: only after `RetryableError` the same producer goes on.
        """
        self._has_id = False
        if self._is_spent:
            self.close()
            self._producer, self._is_spent = self._make(), False
        try:
            self._call(lambda: self._producer.init_transactions(self._timeout_s))
        except (AbortedError, DeploymentError):
            self._is_spent = True
            raise
        self._has_id, self._used_s = True, time.monotonic()

    def begin(self) -> None:
        """Opens a transaction, at the broker with the first record or offset.

        After a broken connection the end of the last transaction may have been sent twice. The
        first request may still arrive, and would end this transaction (KIP-890, librdkafka issue
        5423). A new epoch of the transactional id makes brokers refuse it. A new producer is made
        for that, and after a long time without a transaction.
        """
        self._refused = None
        self._needs.clear()
        self._note(lambda: self._producer.poll(0))
        idle_s = time.monotonic() - self._used_s
        self._is_spent |= self._has_id and (self._connections.any or idle_s > RENEW_AFTER_S)
        if self._is_spent or not self._has_id:
            log.info("the transactional id is taken again", idle_s=round(idle_s))
            self._take_id()
        self._call(self._producer.begin_transaction)

    def produce(self, output: Output) -> None:
        """Queues a record, serving deliveries while the queue is full."""
        topic = self._settings.broker_topic(output.topic)
        self._needs.add(f"Write on topic {topic}")

        def report(error: KafkaError | None, _: RawMessage | None) -> None:
            if error is not None and isinstance(
                failed := sort_error(error, f"Write on topic {topic}", is_record=True),
                DeploymentError,
            ):
                self._refused = self._refused or failed

        arguments = produce_arguments(output)
        while True:
            try:
                self._producer.produce(topic, on_delivery=report, **arguments)
                return
            except BufferError:
                self._call(lambda: self._producer.poll(FULL_QUEUE_POLL_S))
            except KafkaException as error:
                report(error.args[0], None)
                raise self._sorted(error.args[0]) from error

    def send_offsets(
        self, offsets: Mapping[TopicPartition, Position], membership: Membership
    ) -> None:
        """Waits until all records are written, then adds offsets."""
        raw = raw_offsets(self._settings, offsets)
        self._needs.update(f"Read on topic {each.topic}" for each in raw)
        self._call(lambda: self._flush(self._timeout_s))
        self._call(
            lambda: self._producer.send_offsets_to_transaction(raw, membership, self._timeout_s)
        )

    def _flush(self, timeout_s: float) -> None:
        if self._producer.flush(timeout_s):
            raise RetryableError(
                "the broker has not written all records of the transaction in time"
            )

    def commit(self) -> None:
        """Commits.

        After an error with unknown outcome it raises `FencedError`: the service must restart.
        """
        try:
            self._end(lambda: self._producer.commit_transaction(self._timeout_s))
        except (AbortedError, DeploymentError) as error:
            if isinstance(error, DeploymentError):
                # It may answer a request that was sent again, after the first one has committed.
                is_unknown = error is not self._refused and self._connections.any
            else:
                is_unknown = self._is_spent or isinstance(error, _UnforeseenError)
            if is_unknown:
                raise FencedError(
                    f"the outcome of a transaction is unknown ({error}): restart the service"
                ) from error
            raise

    def abort(self) -> None:
        """Drops queued records and aborts; replaces a producer that cannot abort.

        It replaces one with a refused record, too: librdkafka would number the next records of the
        partition after it, and the broker would not take them for as long as a transaction lasts.
        """
        if self._has_id and not (self._is_spent or self._refused):
            self._note(lambda: self._producer.flush(ABORT_FLUSH_S))
            try:
                return self._end(lambda: self._producer.abort_transaction(self._timeout_s))
            except (AbortedError, DeploymentError) as error:
                log.warning(
                    "a transaction could not be aborted: its Kafka producer is replaced",
                    error=str(error),
                )
        self._is_spent |= self._has_id
        self._take_id()

    def _end(self, call: Callable[[], object]) -> None:
        try:
            self._call(call)
        except RetryableError:
            self._connections.any = True
            raise
        self._used_s = time.monotonic()

    def close(self) -> None:
        """Drops queued records and disconnects; does not wait for a broker."""
        self._producer.purge(blocking=False)
        self._note(lambda: self._producer.poll(0))

    def _call(self, call: Callable[[], object]) -> None:
        if self._fenced is not None:
            raise self._fenced
        try:
            call()
        except (KafkaException, SystemError) as error:
            raise self._sorted(fatal_cause(error)) from error

    def _note(self, call: Callable[[], object]) -> None:
        """Serves deliveries; a fatal error is remembered and raised by the next call."""
        try:
            call()
        except (KafkaException, SystemError) as error:
            self._sorted(fatal_cause(error))

    def _sorted(self, error: KafkaError) -> CarpoolError:
        """Sorts an error. If the broker refused a record, that is the error to report."""
        code = error.code()
        if code == KafkaError._FENCED:
            self._fenced = FencedError(
                f"another Kafka producer has this transactional id now: {error.str()}"
            )
            return self._fenced
        kind = KINDS.get(code)
        if kind in FAULTS:
            return self._refused or sort_error(error, self._needed(code))
        is_fatal = error.fatal() or code == KafkaError._FATAL
        if kind == "forgotten" or (is_fatal and not self._is_spent):
            self._is_spent = True
        elif error.txn_requires_abort() or code == KafkaError._STATE:
            self._note(lambda: self._producer.poll(REPORT_WAIT_S))
        elif not is_fatal:
            if error.retriable() or kind == "passes":
                return RetryableError(f"the broker did not answer in time: {error.str()}")
            return self._refused or _UnforeseenError(
                f"a call of a transaction failed and may not be retried: {error.str()}"
            )
        return self._refused or AbortedError(f"the transaction must be aborted: {error.str()}")

    def _needed(self, code: int) -> str:
        """Returns which right a transaction lacks after this error, in words."""
        name = str(self._config["transactional.id"])
        return {
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"Write on transactional id {name}",
            KafkaError.GROUP_AUTHORIZATION_FAILED: f"Read on the group of transactional id {name}",
            KafkaError.TOPIC_AUTHORIZATION_FAILED: " or ".join(sorted(self._needs)),
        }.get(code, name)


def fence_instance(settings: KafkaSettings, group: str, instance_id: str) -> None:
    """Fences the producer of another instance id, which aborts its open transaction.

    Blocks for `request_timeout_ms` at most. Raises `RetryableError` when no coordinator answers,
    `DeploymentError` without permission.
    """
    producer = LibrdkafkaTransactionalProducer(settings, transactional_id(group, instance_id))
    try:
        with suppress(FencedError):  # another member was faster: the id is fenced
            producer.start()
    finally:
        producer.close()
