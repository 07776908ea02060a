"""A consumer group is deleted and its log read again by a second life of the services: each record
still has one terminal answer, and a question that comes again under its id has the answer it had.
Their topics have a prefix: questions without it are of another corpus.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.core.stack import SERVICES, Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.deployment import check_deployment
from carpool.kafka.settings import KafkaSettings
from schemas.record import Headers
from schemas.topics import ANSWERS, QUERIES, TOPICS
from tests.cli.support import carpool
from tests.e2e.support import Publisher, at_least, make_again, read_all, read_to_end, services
from tests.waiting import WAIT_S, wait_until

EACH = 20
LATE: Headers = (("rag-deadline-ms", b"1000"),)


@pytest.mark.kafka
def test_without_its_offsets_a_log_is_read_again_by_permission_and_nothing_is_answered_twice(
    kafka_bootstrap: str, small_index: Path, tmp_path: Path
) -> None:
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, prefix="forgotten", partitions=2)
    without = KafkaSettings(bootstrap=kafka_bootstrap)
    for each in (kafka, without):
        create_topics(each)
    queries, answers = map(kafka.broker_topic, (QUERIES.name, ANSWERS.name))
    publisher = Publisher(kafka_bootstrap)

    def publish(query_id: str, text: object, headers: Headers = ()) -> None:
        value = json.dumps({"query_id": query_id, "text": text}).encode()
        publisher.queue(queries, value, key=query_id, headers=headers)

    def stack() -> Stack:
        settings = {"KAFKA_PREFIX": kafka.prefix, "LLM_ENGINE": "none"}
        return services(kafka_bootstrap, small_index, tmp_path / "run", **settings)

    elsewhere = json.dumps({"query_id": "elsewhere", "text": "what of the river?"}).encode()
    assert publisher.send(QUERIES.name, elsewhere) is None
    with stack():
        for number in range(EACH):
            publish(f"ok-{number}", f"what of river {number}?")
            publish(f"late-{number}", "what of the river?", LATE)
            publish(f"bad-{number}", 7)
        publisher.flush()
        read_all(kafka_bootstrap, answers, until=at_least(3 * EACH))
        publish("ok-0", 7)
        publish("ok-1", "what of the river?", LATE)
        publisher.flush()
        read_all(kafka_bootstrap, answers, until=at_least(3 * EACH + 2))
    _delete_groups(kafka)

    found = check_deployment(
        kafka, "auto", TOPICS, group=kafka.group_of("grouper"), inputs=[QUERIES.name]
    )
    assert any("has no committed offsets" in each for each in found.problems)
    reset = f"groups reset grouper {QUERIES.name}/0/0 --yes --bootstrap {kafka_bootstrap}"
    assert carpool(f"{reset} --set kafka.prefix={kafka.prefix}").code == 0
    with stack() as again:
        publish("after", "what of the comet?")
        publish("ok-2", "what of river 2?")
        publisher.flush()

        def skipped() -> float:
            name = "carpool_answer_ledger_decisions_total"
            return again["generator"].metric(name, result="skipped")

        wait_until(lambda: skipped() >= 3 * EACH + 2, lambda: f"{skipped()} skipped")
        read_all(kafka_bootstrap, answers, until=at_least(3 * EACH + 4))

    written = read_to_end(kafka_bootstrap, answers)
    sources = {
        (each.body["source"]["partition"], each.body["source"]["offset"]) for each in written
    }
    assert len(sources) == len(written) == 3 * EACH + 4, "each record has one"
    replayed = [each.body["replayed"] for each in written if each.key == b"ok-2"]
    assert replayed == [False, True], "the second life gives what the first one wrote"
    assert not any(b"forgotten" in each.value for each in written), "records have no prefix"
    others = read_to_end(kafka_bootstrap, ANSWERS.name)
    assert not any(b"elsewhere" in each.value for each in others), "a question of another corpus"
    newest = {each.key: each.body["status"] for each in written}  # what compaction keeps
    for number in range(EACH):
        statuses = [newest[f"{kind}-{number}".encode()] for kind in ("ok", "late", "bad")]
        assert statuses == ["ok", "expired", "failed"]


@pytest.mark.kafka
def test_bare_texts_are_answered_at_the_places_of_others_once_their_topic_is_made_again(
    kafka_bootstrap: str, small_index: Path, tmp_path: Path
) -> None:
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, prefix="bare", partitions=2)
    create_topics(kafka)
    queries, answers = map(kafka.broker_topic, (QUERIES.name, ANSWERS.name))
    settings = {
        "KAFKA_PREFIX": kafka.prefix,
        "KAFKA_LIBRDKAFKA": '{"group.protocol": "classic"}',
        "LLM_ENGINE": "none",
    }

    def publish(first: int) -> None:
        publisher = Publisher(kafka_bootstrap)  # knows the topic that was made again
        for number in range(EACH):
            text = f"what of river {first + number}?"
            publisher.queue(queries, text.encode(), key=str(number))
        publisher.flush()

    with services(kafka_bootstrap, small_index, tmp_path / "run", **settings):
        publish(0)
        read_all(kafka_bootstrap, answers, until=at_least(EACH))
        make_again(kafka, QUERIES)
        publish(EACH)
        written = read_all(kafka_bootstrap, answers, until=at_least(2 * EACH))
    assert [each.body["status"] for each in written] == ["ok"] * 2 * EACH
    assert len({each.key for each in written}) == 2 * EACH


def _delete_groups(kafka: KafkaSettings) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def deleted() -> bool:
        groups = [kafka.group_of(service) for service in SERVICES]
        try:
            for done in admin.delete_consumer_groups(groups).values():
                done.result(WAIT_S)
        except KafkaException as error:
            return "not found" in str(error).lower() or "does not exist" in str(error).lower()
        return True

    wait_until(deleted, "the groups to be empty and deleted")
