"""Judges whether a service may start on its brokers. Pure; `kafka.deployment` asks them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from carpool.errors import RetryableError
from carpool.kafka.acls import READS, SERVICES, WRITES
from carpool.kafka.corpus_checks import corpus_warnings, mended_by, number_of, uneven_corpus
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.standing import Standing, forgotten_group, hours, missing_records
from schemas.topics import (
    ANSWERS,
    CANCELS,
    DOCUMENTS,
    DOCUMENTS_DEAD,
    FOR_EVER,
    QUERIES,
    QUERIES_BATCH,
    QUERIES_BATCH_DEAD,
    QUERIES_DEAD,
    RETRIES,
    RETRIES_BATCH,
    RETRIEVAL_DRAFTS,
    RETRIEVALS,
    RETRIEVALS_BATCH,
    TOPICS,
    UNTIL_PROCESSED,
    Topic,
)

Wish = Literal["auto", "exactly_once", "at_least_once"]
DeliveryName = Literal["exactly_once", "at_least_once"]

INTERNAL_LOGS = {
    "__consumer_offsets": "offsets.topic",
    "__transaction_state": "transaction.state.log",
}
"""The brokers' own topics, and how the settings of each begin."""
LETTERS_WAIT = "a bad record of a missing partition would stop the service"
BY_NUMBER: tuple[tuple[Topic, tuple[Topic, ...], str], ...] = (
    (ANSWERS, (RETRIEVALS, RETRIEVALS_BATCH), "questions of a missing partition wait"),
    (CANCELS, (RETRIEVALS, RETRIEVALS_BATCH), "some cancels are not seen"),
    (RETRIEVALS, (CANCELS,), "some cancels are not seen"),
    (RETRIEVALS_BATCH, (CANCELS,), "some cancels are not seen"),
    (RETRIEVAL_DRAFTS, (RETRIEVALS, RETRIEVALS_BATCH), "some prompts are not warmed"),
    (QUERIES_DEAD, (QUERIES, RETRIES), LETTERS_WAIT),
    (QUERIES_BATCH_DEAD, (QUERIES_BATCH, RETRIES_BATCH), LETTERS_WAIT),
    (DOCUMENTS_DEAD, (DOCUMENTS,), LETTERS_WAIT),
)
"""Topics that need the partitions of others by number, and what happens while they have fewer.

A running service goes on meanwhile, so another may start.
"""
CAPS_IN_SYNC = "telemetry.max.bytes"
"""A setting of brokers from Kafka 3.7 on. These acknowledge what all copies have, even if
`min.insync.replicas` is larger than the number of copies (KAFKA-15583).
"""
SETTINGS_HIDDEN = (
    "the brokers' settings cannot be read, so they were not checked: allow DescribeConfigs on the "
    "cluster"
)
ACLS = "(`carpool acls` prints the rights that each service needs)"


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """A topic at the brokers. `config` None: it could not be read."""

    partitions: int
    replicas: int
    config: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class BrokerFacts:
    """The brokers' answers, with their names of topics.

    `config` is that of one broker; empty: none; None: not permitted.

    `standings` are those in the service's inputs, and with questions also in `rag.answers.v1`.
    `unknown` says why they could not be asked for. These credentials may not describe
    `hidden_topics`. `lacking` has topics, each with a right on its records that they need and do
    not have.
    """

    brokers: int
    config: Mapping[str, str] | None = field(default_factory=dict)
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    standings: Mapping[TopicPartition, Standing] = field(default_factory=dict)
    unknown: RetryableError | None = None
    hidden_topics: frozenset[str] = frozenset()
    lacking: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The result of the checks. `problems` stop the service; `warnings` are logged."""

    has_transactions: bool
    delivery: DeliveryName
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def promise(self) -> str:
        """The delivery guarantee on these brokers, in a sentence for the log."""
        if self.delivery == "exactly_once":
            return (
                "nothing is lost and nothing is repeated, for readers that read committed "
                "records only"
            )
        why = (
            ""
            if self.has_transactions
            else "; these brokers have no transactions that could prevent it"
        )
        return (
            "nothing is lost; after a crash what was in flight may be answered twice, "
            f"under the same record id{why}"
        )


def judge(
    settings: KafkaSettings,
    wish: Wish,
    topics: Sequence[Topic],
    facts: BrokerFacts,
    service: str = "",
) -> Deployment:
    """Returns whether a service may start with the configured delivery, `wish`.

    The partitions of the topics of `service` are compared; empty: those of all. Problems and
    warnings name topics as the brokers do.
    """
    has_transactions = have_transactions(facts.config)
    delivery: DeliveryName = (
        "exactly_once"
        if wish == "exactly_once" or (wish == "auto" and has_transactions)
        else "at_least_once"
    )
    problems = list(_cluster_problems(facts, delivery, has_transactions))
    warnings = [SETTINGS_HIDDEN] if facts.config is None else []
    used = next((READS[role] + WRITES[role] for role in SERVICES if role == service), TOPICS)
    lanes = {settings.broker_topic(each.name) for each in used if each.partition_by == "lane"}
    for topic in named_at_brokers(settings, topics):
        for operation in (each for name, each in facts.lacking if name == topic.name):
            (warnings if topic.best_effort or operation == "DELETE" else problems).append(
                f"topic {topic.name}: these credentials lack the right {operation.title()} {ACLS}"
            )
        found = facts.topics.get(topic.name)
        if found is None:
            is_warning = topic.best_effort and topic.name not in facts.hidden_topics
            (warnings if is_warning else problems).append(_absence(topic, facts))
            continue
        if topic.name in lanes and found.partitions != settings.lanes:
            is_problem = found.partitions < settings.lanes  # records of a missing lane are refused
            (problems if is_problem else warnings).append(_lane_count(topic, found, settings))
        problems += _topic_problems(topic, found, facts)
        warnings += _topic_warnings(topic, found, facts)
    warnings += _fewer_partitions(settings, used, facts)
    counts = {name: found.partitions for name, found in facts.topics.items()}
    problems += uneven_corpus(settings, used, counts)
    problems += forgotten_group(settings, facts.standings)
    for at, standing in sorted(facts.standings.items()):
        warnings += missing_records(at, standing)
    return Deployment(
        has_transactions=has_transactions,
        delivery=delivery,
        problems=tuple(problems),
        warnings=tuple(warnings),
    )


def _absence(topic: Topic, facts: BrokerFacts) -> str:
    if topic.name in facts.hidden_topics:
        return (
            f"topic {topic.name} cannot be seen by these credentials, whether it exists or not: "
            f"allow Describe on it {ACLS}"
        )
    return f"topic {topic.name} does not exist: run `carpool topics create`"


def named_at_brokers(settings: KafkaSettings, topics: Sequence[Topic]) -> list[Topic]:
    """Returns the topics with their names at the brokers."""
    return [
        msgspec.structs.replace(topic, name=settings.broker_topic(topic.name)) for topic in topics
    ]


def have_transactions(config: Mapping[str, str] | None) -> bool:
    """Returns whether the brokers have transactions, derived from the settings of one of them.

    A broker without a coordinator has no settings for it. Brokers that hide their settings have
    access control, and those have transactions.
    """
    return config is None or "transaction.state.log.min.isr" in config


def _cluster_problems(
    facts: BrokerFacts, delivery: DeliveryName, has_transactions: bool
) -> Iterator[str]:
    """Internal topics are created at first use, which fails with fewer brokers than copies."""
    if delivery == "exactly_once" and not has_transactions:
        yield (
            "kafka.delivery is exactly_once, but these brokers have no transactions (the embedded "
            "broker has none): use Apache Kafka, or set kafka.delivery to auto or at_least_once"
        )
    for name, prefix in INTERNAL_LOGS.items():
        copies = number_of(facts.config or {}, f"{prefix}.replication.factor")
        is_needed = delivery == "exactly_once" or name == "__consumer_offsets"
        if is_needed and copies is not None and name not in facts.topics and copies > facts.brokers:
            yield (
                f"the brokers want {copies} copies of {name} ({prefix}.replication.factor), and "
                f"there are {facts.brokers} brokers: no group can be joined, or no transaction can "
                "begin. Start more brokers, or lower that setting"
            )


def _topic_problems(topic: Topic, found: TopicFacts, facts: BrokerFacts) -> Iterator[str]:
    name, config = topic.name, found.config or {}
    size = number_of(config, "max.message.bytes")
    if size is not None and size < topic.max_message_bytes:
        yield (
            f"topic {name} takes records of {size} bytes, and its largest have "
            f"{topic.max_message_bytes}: brokers would refuse them, and the service would stop. "
            f"{mended_by(name, 'max.message.bytes', topic.max_message_bytes)}"
        )
    in_sync = number_of(config, "min.insync.replicas")
    if in_sync is not None and (facts.config is None or CAPS_IN_SYNC in facts.config):
        in_sync = min(in_sync, found.replicas)
    if in_sync is not None and in_sync > min(found.replicas, facts.brokers):
        yield (
            f"topic {name} has {found.replicas} copies on {facts.brokers} brokers, and "
            f"min.insync.replicas is {in_sync}: no "
            "record would ever be acknowledged. Lower it, or make the topic with more copies"
        )


def _topic_warnings(topic: Topic, found: TopicFacts, facts: BrokerFacts) -> Iterator[str]:
    name, config = topic.name, found.config
    if config is None:
        yield (
            f"the settings of topic {name} cannot be read, so they were not checked: allow "
            "DescribeConfigs on it"
        )
        return
    if found.replicas == 1 and facts.brokers > 1:
        yield (
            f"topic {name} has one copy: if its broker loses records, they are lost. Create it "
            f"with {min(3, facts.brokers)} copies"
        )
    if found.replicas > 1 and number_of(config, "min.insync.replicas") == 1:
        yield (
            f"topic {name} acknowledges a record that only one of its {found.replicas} copies has "
            "(min.insync.replicas is 1): "
            f"it is lost with a broker that is lost. {mended_by(name, 'min.insync.replicas', 2)}"
        )
    if config.get("unclean.leader.election.enable") == "true":
        yield (
            f"topic {name} may elect a leader that lacks acknowledged records "
            "(unclean.leader.election.enable): unset it"
        )
    if topic.is_dated_by_brokers:
        yield from corpus_warnings(topic, config)
    yield from _retention_warnings(topic, config)


def _retention_warnings(topic: Topic, config: Mapping[str, str]) -> Iterator[str]:
    name, retention_ms = topic.name, number_of(config, "retention.ms")
    deletes = "delete" in config.get("cleanup.policy", "delete")
    if topic.retention_ms == FOR_EVER:
        if deletes and retention_ms != -1:
            yield (
                f"topic {name} deletes records that should be kept for ever: "
                f"{mended_by(name, 'retention.ms', -1)}"
            )
    elif not deletes:
        yield (
            f"topic {name} never deletes records, so it grows without end. "
            f"{mended_by(name, 'cleanup.policy', '[compact,delete]')}"
        )
    elif retention_ms is not None and retention_ms >= 0 and topic.retention_ms == UNTIL_PROCESSED:
        yield (
            f"topic {name} deletes records after {hours(retention_ms)}, processed or not: a "
            "longer outage of the service that reads them loses questions. "
            f"{mended_by(name, 'retention.ms', UNTIL_PROCESSED)}"
        )
    elif retention_ms is not None and 0 <= retention_ms < topic.retention_ms:
        yield (
            f"topic {name} keeps records for {hours(retention_ms)}, less than the "
            f"{hours(topic.retention_ms)} that it should: unread records are deleted earlier. "
            f"{mended_by(name, 'retention.ms', topic.retention_ms)}"
        )
    if deletes and (number_of(config, "retention.bytes") or -1) >= 0:
        yield (
            f"topic {name} deletes by size (retention.bytes is {config['retention.bytes']}): "
            "under load, unread records are deleted however young they are. Unset it"
        )


def _lane_count(topic: Topic, found: TopicFacts, settings: KafkaSettings) -> str:
    return (
        f"topic {topic.name} has {found.partitions} partitions, and kafka.lanes is "
        f"{settings.lanes}: set kafka.lanes to {found.partitions} in all services; or stop "
        "them while no record waits in the topics of groups and scans, delete these, and run "
        "`carpool topics create`"
    )


def _fewer_partitions(
    settings: KafkaSettings, topics: Collection[Topic], facts: BrokerFacts
) -> Iterator[str]:
    counts = {name: found.partitions for name, found in facts.topics.items()}
    for topic, others, effect in BY_NUMBER:
        name = settings.broker_topic(topic.name)
        for other in (settings.broker_topic(each.name) for each in others):
            if topic in topics and name in counts and counts[name] < counts.get(other, 0):
                yield (
                    f"topic {name} has {counts[name]} partitions and {other} has {counts[other]}: "
                    f"{effect}. Add partitions (`kafka-topics --alter --partitions`)"
                )
