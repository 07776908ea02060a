"""A service does not start while a living member has its instance id."""

from __future__ import annotations

import uuid

import pytest

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from carpool.kafka.librdkafka import LibrdkafkaConsumer, namesake
from carpool.kafka.librdkafka.namesake import wait_until_name_is_free
from carpool.kafka.settings import KafkaSettings
from schemas.topics import QUERIES
from tests.generator.dedup_support import make_topics
from tests.kafka.conformance.harness import Listener, insist, poll_until

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
    # No such group; brokers that have just started have no coordinator for it.
    insist(lambda: wait_until_name_is_free(settings, group, "searcher-1", lambda _: False))
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
