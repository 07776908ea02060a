"""Real Kafka that forgets idle transactional ids after seconds: an idle member commits again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient
from kafka.errors import TransactionalIdNotFoundError

from carpool.errors import AbortedError
from carpool.kafka.clients import Position
from carpool.kafka.fencing import transactional_id
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from tests.kafka.conformance.harness import PARTITIONS, Member, Reached, insist
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.long]

ATTEMPTS_MAX = 3
SHORT_LIVES = {
    "transactional.id.expiration.ms": 4_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "producer.id.expiration.ms": 4_000,
    "producer.id.expiration.check.interval.ms": 500,
    "offsets.retention.check.interval.ms": 500,
    "log.retention.check.interval.ms": 500,
}
"""Properties of a broker that forgets idle transactional ids after seconds instead of days."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    folder = tmp_path_factory.mktemp("short") / "broker"
    with KafkaServer(folder, settings=SHORT_LIVES) as server:
        yield server


@pytest.fixture
def broker(server: KafkaServer) -> Reached:
    settings = KafkaSettings(bootstrap=server.bootstrap, partitions=PARTITIONS)
    return Reached(f"t-{uuid.uuid4().hex[:8]}", "kafka", settings, server)


def idle_member(broker: Reached) -> Member:
    """Returns a member with one transaction that the brokers have forgotten since."""
    member = Member(broker, "a").await_partitions()
    member.transact(["before"], {broker.at(0): Position(1, "2;a;")})
    name = transactional_id(broker.group, "a")
    admin = KafkaAdminClient(bootstrap_servers=broker.settings.bootstrap)

    def is_forgotten() -> bool:
        member.consumer.poll(0.2)
        try:
            admin.describe_transactions([name])
        except TransactionalIdNotFoundError:
            return True
        return False

    wait_until(is_forgotten, "the brokers forget the transaction")
    admin.close()
    return member


def test_an_idle_member_renews_its_transactional_id_without_an_abort(
    broker: Reached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carpool.kafka.librdkafka.transactional.RENEW_AFTER_S", 1.0)
    member = idle_member(broker)
    member.transact(["after"], {broker.at(0): Position(2, "2;a;")})
    assert broker.seen(broker.results) == ["before", "after"]
    member.close()


def test_a_member_whose_transactional_id_expired_commits_again(broker: Reached) -> None:
    member = idle_member(broker)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            member.transact(["after"], {broker.at(0): Position(2, "2;a;")})
            break
        except AbortedError:
            assert attempt < ATTEMPTS_MAX, "it commits after one abort"
            insist(member.producer.abort)
    assert broker.seen(broker.results) == ["before", "after"]
    member.close()
