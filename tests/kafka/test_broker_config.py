"""Brokers are asked one after the other; without an answer nothing is assumed."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from carpool.errors import RetryableError
from carpool.kafka.librdkafka import member_state
from carpool.kafka.librdkafka.ask_brokers import broker_config, reply
from carpool.kafka.librdkafka.member_state import EndOffsets, choose_protocol
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

CONFIG = {"transaction.state.log.min.isr": "2", "group.consumer.session.timeout.ms": "45000"}


class Brokers:
    """A fake `AdminClient`. `errors`: by broker, the error in place of its settings."""

    def __init__(self, **errors: int) -> None:
        self.errors = {name.removeprefix("of_"): code for name, code in errors.items()}
        self.asked: list[str] = []

    def describe_configs(
        self, resources: list[ConfigResource], request_timeout: float
    ) -> dict[Any, Future[Any]]:
        (resource,) = resources
        self.asked.append(resource.name)
        future: Future[Any] = Future()
        if resource.name in self.errors:
            future.set_exception(KafkaException(KafkaError(self.errors[resource.name])))
        else:
            future.set_result(
                {name: SimpleNamespace(value=value) for name, value in CONFIG.items()}
            )
        return {resource: future}


def ask(brokers: Brokers) -> dict[str, str] | None:
    return broker_config(brokers, [3, 1, 2], 1.0)  # type: ignore[arg-type]


def test_the_first_broker_that_answers_is_used() -> None:
    brokers = Brokers()
    assert (ask(brokers), brokers.asked) == (CONFIG, ["1"])
    brokers = Brokers(of_1=KafkaError._TIMED_OUT, of_2=KafkaError._TRANSPORT)
    assert (ask(brokers), brokers.asked) == (CONFIG, ["1", "2", "3"])


def test_without_an_answer_nothing_is_assumed() -> None:
    brokers = Brokers(
        of_1=KafkaError._TIMED_OUT, of_2=KafkaError._TIMED_OUT, of_3=KafkaError.REQUEST_TIMED_OUT
    )
    with pytest.raises(RetryableError, match=r"DescribeConfigs on broker 3.*timed out"):
        ask(brokers)
    with pytest.raises(RetryableError, match="DescribeConfigs on broker 3"):
        choose_protocol(KafkaSettings(), brokers, [1, 2, 3])  # type: ignore[arg-type]


def test_a_cluster_without_brokers_is_retried() -> None:
    with pytest.raises(RetryableError, match="is the cluster starting"):
        broker_config(Brokers(), [], 1.0)  # type: ignore[arg-type]


def test_brokers_that_hide_their_settings_are_asked_once() -> None:
    brokers = Brokers(of_1=KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    assert (ask(brokers), brokers.asked) == (None, ["1"])
    assert choose_protocol(KafkaSettings(), brokers, [1]) == "classic"  # type: ignore[arg-type]


# ---- an `AdminClient` never ends on the thread of its replies: librdkafka would abort


AT = TopicPartition("questions", 0)


SETTINGS = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_ms=1_000)


class Watched(AdminClient):
    """Notes on which thread it ends."""

    ended_on: ClassVar[list[int]] = []

    def __del__(self) -> None:
        self.ended_on.append(threading.get_ident())


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_client_with_an_open_request_ends_on_the_thread_that_drops_it(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_state, "AdminClient", Watched)
    monkeypatch.setattr(Watched, "ended_on", [])
    ends = EndOffsets(SETTINGS)
    assert ends.known([AT], ask=True) == {}
    assert ends._asked
    gc.disable()  # the client must end without it
    try:
        if is_closed:
            ends.close()
        else:
            del ends
        assert Watched.ended_on == [threading.get_ident()]
    finally:
        gc.enable()


def test_an_error_reply_references_no_frame_of_its_caller() -> None:
    future: Future[None] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    with pytest.raises(KafkaException) as raised:
        reply(future)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    held = future.exception()
    assert held is not None and held.__traceback__ is None and held is not raised.value


def test_an_error_without_words_gets_those_of_its_code() -> None:
    future: Future[None] = Future()
    code = KafkaError.COORDINATOR_NOT_AVAILABLE
    future.set_exception(KafkaException(KafkaError(code, "ConsumerGroupDescribe: ")))
    with pytest.raises(KafkaException) as raised:
        reply(future)
    assert raised.value.args[0].str() == "ConsumerGroupDescribe: Broker: Coordinator not available"
