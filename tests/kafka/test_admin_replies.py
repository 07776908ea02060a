"""An `AdminClient` never ends on the thread of its replies: librdkafka would abort."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from carpool.kafka.librdkafka import member_state
from carpool.kafka.librdkafka.ask_brokers import reply
from carpool.kafka.librdkafka.member_state import EndOffsets
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

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
