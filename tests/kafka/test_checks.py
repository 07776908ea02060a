"""Brokers' answers are judged at start: problems, warnings and the promised delivery."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from carpool.errors import ConfigError
from carpool.kafka.acls import SERVICES
from carpool.kafka.admin import topic_config
from carpool.kafka.checks import BrokerFacts, Deployment, TopicFacts, Wish, judge
from carpool.kafka.deployment import require_fit
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.standing import Standing
from schemas.topics import (
    ANSWERS,
    CANCELS,
    DOCUMENTS,
    DOCUMENTS_DEAD,
    GROUPS,
    PARTIAL_ANSWERS,
    QUERIES,
    QUERIES_DEAD,
    RETRIES,
    RETRIEVALS,
    TOPICS,
    VECTORS,
    Topic,
)

BROKER = {
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "group.coordinator.rebalance.protocols": "classic, consumer,streams",
}
SINCE_3_7 = BROKER | {"telemetry.max.bytes": "1048576"}
SETTINGS = KafkaSettings()
AT = TopicPartition(QUERIES.name, 0)
OF_QUESTIONS = SERVICES[:3]


def topic_facts(topic: Topic, partitions: int = 4, replicas: int = 3, **config: str) -> TopicFacts:
    changes = {name.replace("_", "."): value for name, value in config.items()}
    settings = topic_config(topic) | {"min.insync.replicas": "2", "retention.bytes": "-1"} | changes
    return TopicFacts(
        partitions=1 if topic.partition_by == "lane" else partitions,
        replicas=replicas,
        config=settings,
    )


def facts(
    *,
    without: Topic | None = None,
    standing: Standing | None = None,
    brokers: int = 3,
    broker: dict[str, str] = BROKER,
    topics: dict[str, TopicFacts] | None = None,
) -> BrokerFacts:
    """A deployment without problems, except for `topics`."""
    found = {topic.name: topic_facts(topic) for topic in TOPICS if topic is not without}
    found |= topics or {}
    return BrokerFacts(
        brokers=brokers,
        config=broker,
        topics=found,
        standings={} if standing is None else {AT: standing},
    )


def judged(
    found: BrokerFacts, wish: Wish = "auto", settings: KafkaSettings = SETTINGS
) -> Deployment:
    return judge(settings, wish, TOPICS, found)


def problem(found: BrokerFacts, wish: Wish = "auto") -> str:
    deployment = judged(found, wish)
    (only,) = deployment.problems
    with pytest.raises(ConfigError, match="would lose work"):
        require_fit(deployment)
    return only


def warning(found: BrokerFacts) -> str:
    deployment = judged(found)
    require_fit(deployment)
    (only,) = deployment.warnings
    return only


def test_a_deployment_that_fits_promises_exactly_once_and_says_nothing_else() -> None:
    deployment = judged(facts())
    assert (deployment.problems, deployment.warnings) == ((), ())
    assert deployment.has_transactions
    assert deployment.delivery == "exactly_once"
    assert "nothing is repeated" in deployment.promise


def test_brokers_that_hide_their_settings_deliver_exactly_once_with_a_warning() -> None:
    found = dataclasses.replace(facts(), config=None)
    assert judged(found).delivery == "exactly_once"
    assert "DescribeConfigs on the cluster" in warning(found)


def test_a_broker_without_transactions_delivers_at_least_once_and_says_why() -> None:
    deployment = judged(facts(broker={}))
    assert not deployment.has_transactions
    assert deployment.delivery == "at_least_once"
    assert "have no transactions" in deployment.promise
    assert "no transactions" not in judged(facts(), "at_least_once").promise
    assert "set kafka.delivery to auto" in problem(facts(broker={}), "exactly_once")


@pytest.mark.parametrize("topic", [QUERIES, GROUPS, QUERIES_DEAD])
def test_a_missing_topic_stops_the_service_with_how_to_make_it(topic: Topic) -> None:
    assert (
        problem(facts(without=topic))
        == f"topic {topic.name} does not exist: run `carpool topics create`"
    )


def changed(topic: Topic, partitions: int = 4, replicas: int = 3, **config: str) -> BrokerFacts:
    """A deployment where one topic differs."""
    return facts(topics={topic.name: topic_facts(topic, partitions, replicas, **config)})


PARTLY_GONE = facts(
    standing=Standing(
        committed=5, metadata="1;2+2,6+4", first=12, end=20, first_ms=1_800_000_000_000
    )
)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (changed(QUERIES, max_message_bytes="1000"), "takes records of 1000 bytes"),
        (changed(QUERIES_DEAD, max_message_bytes="1000"), "--add-config max.message.bytes="),
        (
            changed(QUERIES, replicas=1, min_insync_replicas="2"),
            "no record would ever be acknowledged",
        ),
    ],
)
def test_a_topic_or_log_that_would_stop_a_service_is_a_problem(
    found: BrokerFacts, says: str
) -> None:
    assert says in problem(found)


@pytest.mark.parametrize("committed", [-1, 0])
def test_a_group_without_commits_where_answers_exist_waits_for_a_word(committed: int) -> None:
    asked = Standing(committed=committed, first=0, end=5)
    given = Standing(committed=-1, first=0, end=5)
    places = {AT: asked, TopicPartition(ANSWERS.name, 0): given}
    lost = dataclasses.replace(facts(), standings=places)
    if committed == 0:
        assert judged(lost).problems == ()
        return
    said = problem(lost)
    assert "carpool-grouper has no committed offsets, and rag.answers.v1 has answers" in said
    assert "`carpool groups reset grouper rag.queries.v1/0/0`" in said
    for gone in places:
        empty = dataclasses.replace(places[gone], end=0)
        found = dataclasses.replace(lost, standings=places | {gone: empty})
        assert judged(found).problems == (), "there is nothing to read, or nothing was answered"


@pytest.mark.parametrize("hidden", [False, True])
def test_brokers_since_3_7_acknowledge_what_the_only_copy_has(hidden: bool) -> None:
    found = changed(QUERIES, replicas=1, min_insync_replicas="2")
    found = dataclasses.replace(found, config=None if hidden else SINCE_3_7)
    assert judged(found).problems == ()
    too_many = dataclasses.replace(changed(QUERIES, min_insync_replicas="3"), brokers=2)
    found = dataclasses.replace(too_many, config=found.config)
    assert any("has 3 copies on 2 brokers" in each for each in judged(found).problems)


def test_a_topic_with_fewer_partitions_than_lanes_stops_the_services_that_use_it() -> None:
    two = KafkaSettings(lanes=2)
    for service, count in (("grouper", 2), ("searcher", 2), ("generator", 0)):
        deployment = judge(two, "auto", TOPICS, facts(), service)
        assert len(deployment.problems) == count
        assert all("1 partitions, and kafka.lanes is 2" in each for each in deployment.problems)


@pytest.mark.parametrize(
    ("topic", "says", "services"),
    [
        (QUERIES, "rag.queries.v1.dlq has 4 partitions and rag.queries.v1 has 5", OF_QUESTIONS),
        (RETRIES, "rag.queries.v1.dlq has 4 partitions and rag.retries.v1 has 5", OF_QUESTIONS),
        (RETRIEVALS, "rag.answers.v1 has 4 partitions and rag.retrievals.v1 has 5", ["generator"]),
        (CANCELS, "rag.retrievals.v1 has 4 partitions and rag.cancels.v1 has 5", OF_QUESTIONS),
        (GROUPS, "2 partitions, and kafka.lanes is 1", ["grouper", "searcher"]),
        (ANSWERS, "", []),
        (QUERIES_DEAD, "", []),
        (DOCUMENTS_DEAD, "", []),
    ],
)
def test_partitions_that_are_added_to_one_topic_warn_the_services_that_use_it(
    topic: Topic, says: str, services: Sequence[str]
) -> None:
    more = TopicFacts(
        partitions=2 if topic is GROUPS else 5, replicas=3, config=facts().topics[topic.name].config
    )
    for service in SERVICES:
        deployment = judge(SETTINGS, "auto", TOPICS, facts(topics={topic.name: more}), service)
        assert deployment.problems == ()
        assert any(says in each for each in deployment.warnings) == (service in services)


@pytest.mark.parametrize("service", SERVICES)
def test_documents_and_vectors_of_other_numbers_of_partitions_stop_the_indexer(
    service: str,
) -> None:
    more = facts(topics={DOCUMENTS.name: topic_facts(DOCUMENTS, 5)})
    problems = judge(SETTINGS, "auto", TOPICS, more, service).problems
    assert len(problems) == (service == "indexer")
    assert all(
        "rag.documents.v1 has 5 partitions and rag.vectors.v1 has 4" in each for each in problems
    )


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (changed(DOCUMENTS, cleanup_policy="compact,delete", retention_ms="1000"), "kept for ever"),
        (changed(VECTORS, min_compaction_lag_ms="60000"), "min.compaction.lag.ms=3600000` mends"),
        (
            changed(VECTORS, message_timestamp_type="CreateTime"),
            "message.timestamp.type=Create",
        ),
        (facts(without=PARTIAL_ANSWERS), PARTIAL_ANSWERS.name),
        (
            PARTLY_GONE,
            "rag.queries.v1[0]: 4 records that were never processed are gone, written before "
            "2027-01-15 08:00:00+00:00: the group continues from offset 5, and the log begins at "
            "12. This partition waits, the others go on. Lengthen the topic's retention; `carpool "
            "groups accept-loss` accepts the loss of all",
        ),
        (
            facts(standing=Standing(committed=5, first=0, end=3)),
            "the log ends at 3: the topic was created again, or its broker lost records. This "
            "partition waits, the others go on. Find out which; `carpool groups reset` reads on",
        ),
        (changed(QUERIES, min_insync_replicas="1"), "a broker that is lost"),
        (changed(QUERIES, replicas=1, min_insync_replicas="1"), "has one copy"),
        (changed(QUERIES, retention_ms="3600000"), "keeps records for 1 h"),
        (changed(QUERIES, retention_bytes="1000"), "by size"),
        (changed(GROUPS, 1, retention_ms="86400000"), "longer outage of the service that reads"),
        (changed(ANSWERS, cleanup_policy="compact"), "grows without end"),
        (changed(QUERIES, unclean_leader_election_enable="true"), "lacks acknowledged records"),
        (
            facts(topics={QUERIES.name: TopicFacts(partitions=4, replicas=3, config=None)}),
            "cannot be read, so they were not checked",
        ),
    ],
)
def test_a_topic_that_is_missing_or_may_lose_records_causes_a_warning(
    found: BrokerFacts, says: str
) -> None:
    assert says in warning(found)


def test_one_copy_on_one_broker_and_unlimited_retention_cause_no_warning() -> None:
    one = topic_facts(QUERIES, replicas=1, min_insync_replicas="1")
    alone = facts(
        brokers=1,
        broker=BROKER | {"offsets.topic.replication.factor": "1"},
        topics={QUERIES.name: one},
    )
    assert not any("one copy" in each for each in judged(alone).warnings)
    assert judged(changed(QUERIES, retention_ms="-1")).warnings == ()


def test_too_few_brokers_for_their_own_logs_stop_what_needs_them() -> None:
    one = {topic.name: topic_facts(topic, replicas=1, min_insync_replicas="1") for topic in TOPICS}
    found = BrokerFacts(brokers=1, config=BROKER, topics=one)
    assert [each.split(" (")[0] for each in judged(found).problems] == [
        "the brokers want 3 copies of __consumer_offsets",
        "the brokers want 3 copies of __transaction_state",
    ]
    assert len(judged(found, "at_least_once").problems) == 1
    made = one | {
        name: topic_facts(QUERIES) for name in ("__consumer_offsets", "__transaction_state")
    }
    assert judged(BrokerFacts(brokers=1, config=BROKER, topics=made)).problems == ()


@pytest.mark.parametrize(
    "standing",
    [
        Standing(committed=12, first=12, end=20),
        Standing(committed=20, first=20, end=20),
        Standing(committed=-1, first=7, end=20),
    ],
)
def test_a_group_that_keeps_up_is_fine(standing: Standing) -> None:
    deployment = judged(facts(standing=standing))
    assert (deployment.problems, deployment.warnings) == ((), ())
