"""An `AdminClient` never ends on the thread of its replies: librdkafka would abort."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.librdkafka.end_offsets import EndOffsets
from carpool.kafka.records import TopicPartition

AT = TopicPartition("questions", 0)


class Watched(AdminClient):
    """Notes on which thread it ends."""

    def __init__(self, ended_on: list[int]) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        self._ended_on = ended_on

    def __del__(self) -> None:
        self._ended_on.append(threading.get_ident())


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_client_whose_question_is_open_ends_where_it_is_dropped(is_closed: bool) -> None:
    ended_on: list[int] = []
    ends = EndOffsets(lambda: Watched(ended_on), request_timeout_s=20.0)
    assert ends.known([AT], ask=True) == {}
    assert not ends._ends.is_idle
    gc.disable()  # what is dropped must go without it
    try:
        if is_closed:
            ends.close()
        else:
            del ends
        assert ended_on == [threading.get_ident()]
    finally:
        gc.enable()


def test_a_question_that_no_broker_answers_can_be_asked_again() -> None:
    ends = EndOffsets(lambda: Watched([]), request_timeout_s=0.2)
    ends.known([AT], ask=True)
    until_s = time.monotonic() + 20
    while not ends._ends.is_idle:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert ends.known([AT], ask=False) == {}
    ends.close()


def test_a_reply_that_is_an_error_holds_no_frame_of_whoever_waited() -> None:
    future: Future[None] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    with pytest.raises(KafkaException) as raised:
        reply(future)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    held = future.exception()
    assert held is not None and held.__traceback__ is None and held is not raised.value


def test_a_reply_is_returned() -> None:
    future: Future[int] = Future()
    future.set_result(3)
    assert reply(future) == 3
