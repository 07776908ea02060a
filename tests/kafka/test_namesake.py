"""A service does not start while a living member has its instance id."""

from __future__ import annotations

import uuid

import pytest

from carpool.clock import SystemClock
from carpool.errors import ConfigError, RetryableError
from carpool.kafka.librdkafka import LibrdkafkaConsumer, namesake
from carpool.kafka.librdkafka.namesake import wait_until_name_is_free
from carpool.kafka.settings import KafkaSettings
from schemas.topics import QUERIES
from tests.generator.dedup_support import make_topics
from tests.kafka.conformance.harness import Listener, poll_until

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.long)])
def test_a_living_namesake_is_refused_and_one_that_left_is_not(
    kafka_bootstrap: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = KafkaSettings(
        bootstrap=kafka_bootstrap, librdkafka={"group.protocol": protocol}, instance_id="searcher-1"
    )
    make_topics(settings)
    group, listener = f"g-{uuid.uuid4()}", Listener()
    wait_until_name_is_free(settings, group, "searcher-1", lambda _: False)  # no such group
    member = LibrdkafkaConsumer(settings, group, SystemClock(), own_instance_id="searcher-1")
    member.subscribe(QUERIES.name, listener)
    poll_until(member, lambda: bool(listener.positions))

    def polled(seconds: float) -> bool:
        member.poll(0.05)
        return False

    wait_until_name_is_free(settings, group, "searcher-2", polled)
    monkeypatch.setattr(namesake, "SESSION_S_MAX", 0.0)
    monkeypatch.setattr(namesake, "MARGIN_S", -5.0)
    with pytest.raises(ConfigError, match=r"searcher-1 and is alive, at 127\.0\.0\.1"):
        wait_until_name_is_free(settings, group, "searcher-1", polled)
    wait_until_name_is_free(settings, group, "searcher-1", lambda _: True)  # stopped meanwhile
    member.close()
    wait_until_name_is_free(settings, group, "searcher-1", lambda _: False)


def test_a_coordinator_that_is_not_there_yet_is_asked_again(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that have just started have no coordinator of the group for some seconds."""
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    group, describe = f"g-{uuid.uuid4()}", namesake._host_of
    asked: list[str] = []

    def not_yet(settings: KafkaSettings, group: str, instance_id: str) -> str | None:
        asked.append(group)
        if len(asked) < 2:
            raise RetryableError("no coordinator")
        return describe(settings, group, instance_id)

    monkeypatch.setattr(namesake, "_host_of", not_yet)
    wait_until_name_is_free(settings, group, "searcher-1", lambda _: False)
    assert len(asked) == 2

    def never(*_: object) -> str | None:
        raise RetryableError("no coordinator")

    monkeypatch.setattr(namesake, "_host_of", never)
    settings = KafkaSettings(bootstrap=kafka_bootstrap, request_timeout_ms=1_000)
    with pytest.raises(RetryableError, match="no coordinator"):
        wait_until_name_is_free(settings, group, "searcher-1", lambda _: False)
