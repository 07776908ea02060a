"""Brokers are asked one after the other; without an answer nothing is assumed."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource

from carpool.errors import RetryableError
from carpool.kafka.librdkafka.ask_brokers import broker_config
from carpool.kafka.librdkafka.member_state import choose_protocol
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
