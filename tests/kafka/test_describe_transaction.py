"""What a cluster says of open transactions, which chaos asks before it kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaCluster
from carpool.testing.transactions import DescribedTransaction, describe_transaction, parse_reply
from schemas.topics import ANSWERS
from tests.waiting import WAIT_S


def reply(error: int, state: bytes, *topics: bytes) -> bytes:
    """A reply of one transaction, as the protocol writes it."""
    head = b"\0\0\0\1" + b"\0" + b"\0\0\0\0" + b"\x02" + error.to_bytes(2, "big") + b"\x02x"
    body = bytes([len(state) + 1]) + state + bytes(4 + 8 + 8 + 2) + bytes([len(topics) + 1])
    for topic in topics:
        body += bytes([len(topic) + 1]) + topic + b"\x03" + bytes(8) + b"\0"
    return head + body + b"\0\0"


def test_a_reply_says_whether_a_transaction_is_open_and_blocks_offsets() -> None:
    found = parse_reply(reply(0, b"Ongoing", b"rag.answers.v1", b"__consumer_offsets"))
    assert found == DescribedTransaction(
        state="Ongoing", topics=("rag.answers.v1", "__consumer_offsets")
    )
    assert found.is_open
    assert found.holds_offsets
    ended = parse_reply(reply(0, b"CompleteCommit"))
    assert ended is not None
    assert not ended.is_open
    assert parse_reply(reply(16, b"")) is None, "of another coordinator"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with KafkaCluster(folder) as found:
        create_topics(KafkaSettings(bootstrap=found.bootstrap))
        yield found


@pytest.mark.kafka
def test_an_open_transaction_is_described_until_another_producer_has_its_id(
    cluster: KafkaCluster,
) -> None:
    config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "one"}
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(30)
    assert describe_transaction(cluster.bootstrap, "nobody") is None
    producer.begin_transaction()
    producer.produce(ANSWERS.name, b"x")
    producer.flush(WAIT_S)
    found = describe_transaction(cluster.bootstrap, "one")
    assert found is not None
    assert found.is_open
    assert found.topics == (ANSWERS.name,)
    assert not found.holds_offsets
    confluent_kafka.Producer(config).init_transactions(30)
    ended = describe_transaction(cluster.bootstrap, "one")
    assert ended is not None
    assert not ended.is_open
