"""Errors of librdkafka are sorted: only those that may pass are retried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from carpool.errors import AbortedError, CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.librdkafka import LibrdkafkaTransactionalProducer
from carpool.kafka.librdkafka.convert import FAULTS, KINDS, sort_error
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings

Call = Callable[[LibrdkafkaTransactionalProducer], None]

CALLS: dict[str, Call] = {
    "start": lambda producer: producer.start(),
    "begin": lambda producer: producer.begin(),
    "produce": lambda producer: producer.produce(Output(topic="t", key=None, value=b"v")),
    "send_offsets": lambda producer: producer.send_offsets({}, object()),
    "commit": lambda producer: producer.commit(),
}


class Failing:
    """A confluent-kafka producer whose calls fail, except those that only serve callbacks."""

    def __init__(self, error: KafkaError) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise KafkaException(self.error)

        return fail

    def poll(self, timeout_s: float) -> int:
        return 0

    def flush(self, timeout_s: float) -> int:
        return 0

    def purge(self, **_: object) -> None:
        return


def failing(error: KafkaError) -> LibrdkafkaTransactionalProducer:
    producer = LibrdkafkaTransactionalProducer(KafkaSettings(bootstrap="127.0.0.1:1"), "one")
    producer._producer, producer._has_id = Failing(error), True  # type: ignore[assignment]
    return producer


class Works(Failing):
    """One that takes the transactional id."""

    def init_transactions(self, timeout_s: float) -> None:
        return


def kind(call: str, error: KafkaError) -> type[CarpoolError]:
    with pytest.raises(CarpoolError) as raised:
        CALLS[call](failing(error))
    return next(
        each
        for each in (AbortedError, *type(raised.value).__mro__)
        if isinstance(raised.value, each)
    )


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (KafkaError._TIMED_OUT, RetryableError),
        (KafkaError.NOT_COORDINATOR, RetryableError),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, RetryableError),
        (KafkaError.UNSTABLE_OFFSET_COMMIT, RetryableError),
        (KafkaError.STALE_MEMBER_EPOCH, RetryableError),
        (KafkaError.NOT_ENOUGH_REPLICAS, RetryableError),
        (KafkaError._TRANSPORT, RetryableError),
        (KafkaError.MSG_SIZE_TOO_LARGE, DeploymentError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, DeploymentError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, DeploymentError),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, DeploymentError),
        (KafkaError.POLICY_VIOLATION, DeploymentError),
        (KafkaError._AUTHENTICATION, DeploymentError),
        (KafkaError.UNKNOWN_MEMBER_ID, FencedError),
    ],
    ids=str,
)
def test_a_state_of_the_world_is_retried_and_a_fault_of_the_deployment_is_reported(
    code: int, raised: type[CarpoolError]
) -> None:
    error = KafkaError(code, "in words")
    assert type(sort_error(error)) is type(sort_error(error, "t", is_record=True)) is raised
    if KINDS.get(code) in ("passes", *FAULTS):
        assert kind("send_offsets", error) is raised, "the same in a transaction"


def test_a_partition_that_the_metadata_lacks_is_asked_for_again() -> None:
    unknown = KafkaError(KafkaError._UNKNOWN_PARTITION, "not yet in the metadata")
    assert type(sort_error(unknown)) is RetryableError
    assert kind("send_offsets", unknown) is AbortedError
    assert kind("produce", unknown) is DeploymentError, "after a pause: nobody may ever add it"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (KafkaError(KafkaError._PREV_IN_PROGRESS, "at it", retriable=True), RetryableError),
        (KafkaError(KafkaError._TIMED_OUT, "no reply"), RetryableError),
        (KafkaError(KafkaError.REQUEST_TIMED_OUT, "no reply"), RetryableError),
        (KafkaError(KafkaError._INVALID_ARG, "a bad value"), DeploymentError),
        (KafkaError(KafkaError._AUTHENTICATION, "wrong password"), DeploymentError),
        (
            KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE, "4 KB", txn_requires_abort=True),
            AbortedError,
        ),
    ],
)
def test_an_error_of_a_call_is_retried_or_aborts_or_is_a_deployment_error(
    call: str, error: KafkaError, raised: type[CarpoolError]
) -> None:
    if call == "start" and raised is AbortedError:  # there is no transaction to abort
        raised = RetryableError
    assert kind(call, error) is raised


@pytest.mark.parametrize("call", [call for call in CALLS if call not in ("start", "commit")])
@pytest.mark.parametrize("code", [KafkaError._CONFLICT, KafkaError._FAIL, KafkaError.UNKNOWN])
def test_an_unknown_error_aborts_and_is_not_retried(call: str, code: int) -> None:
    assert kind(call, KafkaError(code, "something else")) is AbortedError


def test_a_fatal_error_that_confluent_kafka_loses_replaces_the_producer() -> None:
    class Loses(Works):
        def flush(self, timeout_s: float) -> int:
            raise SystemError("flush returned NULL without setting an exception")

    producer = failing(KafkaError(KafkaError._FATAL, "-"))
    producer._producer = Loses(KafkaError(KafkaError._FATAL, "-"))  # type: ignore[assignment]
    with pytest.raises(AbortedError, match="flush returned NULL"):
        CALLS["send_offsets"](producer)
    assert producer._is_spent


def test_an_unknown_error_of_a_commit_ends_the_service_because_its_outcome_is_unknown() -> None:
    assert kind("commit", KafkaError(KafkaError._CONFLICT, "something else")) is FencedError


@pytest.mark.parametrize("refuses", ["abort_transaction", "produce"])
def test_an_abort_replaces_a_producer_whose_abort_or_record_was_refused(
    monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    if refuses == "produce":  # librdkafka's sequence numbers of this partition have a gap now
        producer = failing(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large"))
        with pytest.raises(DeploymentError):
            CALLS["produce"](producer)
        monkeypatch.setattr(producer._producer, "abort_transaction", lambda _: None, raising=False)
    else:
        producer = failing(KafkaError(KafkaError._CONFLICT, "another call is in progress"))
    new = Works(KafkaError(KafkaError._FAIL, "not asked"))
    monkeypatch.setattr(producer, "_make", lambda: new)
    producer.abort()
    assert producer._producer is new


NO_ID = KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "refused", fatal=True)


@pytest.mark.parametrize("call", ["start", "begin", "abort"])
def test_after_a_refusal_each_try_takes_the_id_with_a_new_producer(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """librdkafka never uses a producer again whose transactional id was refused."""
    producer = failing(NO_ID)
    producer._connections.any = call == "begin"  # else it need not take the id
    works = Works(KafkaError(KafkaError._FAIL, "not asked"))
    monkeypatch.setattr(works, "begin_transaction", lambda: None, raising=False)
    made = [Failing(NO_ID), works] if call == "start" else [Failing(NO_ID), Failing(NO_ID), works]
    monkeypatch.setattr(producer, "_make", lambda: made.pop(0))
    for _ in range(2):
        with pytest.raises(DeploymentError, match="Write on transactional id one"):
            getattr(producer, call)()
    getattr(producer, call)()
    assert producer._producer is works and not made


def test_what_would_abort_a_transaction_passes_at_the_start() -> None:
    with pytest.raises(RetryableError, match="transactional id one could not be taken"):
        failing(KafkaError(KafkaError.UNKNOWN, "something else")).start()


def test_a_commit_that_is_refused_after_it_was_sent_again_has_an_unknown_outcome() -> None:
    producer = failing(NO_ID)
    with pytest.raises(DeploymentError):
        producer.commit()
    producer._connections.any = True
    with pytest.raises(FencedError, match="outcome of a transaction is unknown"):
        producer.commit()
