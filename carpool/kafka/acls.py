"""The least rights that each kind of Kafka user of Carpool needs. Pure.

The page docs/reference/acls.md, the command `carpool acls` and the tests take them from here. Kafka
implies Describe by Read, Write and Delete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from carpool.kafka.settings import KafkaSettings
from schemas.topics import (
    ANSWERS,
    BASES,
    BATCHES,
    CANCELS,
    DEAD_LETTER_MARKS,
    DOCUMENTS,
    DOCUMENTS_DEAD,
    FILE_PIECES,
    FILES,
    GROUPS,
    GROUPS_BATCH,
    PARTIAL_ANSWERS,
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
    VECTORS,
    Topic,
)

Role = Literal["grouper", "searcher", "generator", "indexer", "application", "gateway", "operator"]
Resource = Literal["TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER"]
Operation = Literal[
    "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"
]

CLUSTER_NAME = "kafka-cluster"
"""The one name of the cluster in access control lists."""

QUESTIONS = (QUERIES, QUERIES_BATCH)
AGAIN = (RETRIES, RETRIES_BATCH)
LETTERS = (QUERIES_DEAD, QUERIES_BATCH_DEAD)
ALL_LETTERS = (*LETTERS, DOCUMENTS_DEAD)
UPLOADS = (FILES, FILE_PIECES)
READS: Mapping[Role, tuple[Topic, ...]] = {
    "grouper": (*QUESTIONS, *AGAIN),
    "searcher": (GROUPS, GROUPS_BATCH, VECTORS, BASES),
    "generator": (RETRIEVALS, RETRIEVALS_BATCH, RETRIEVAL_DRAFTS, ANSWERS, CANCELS),
    "indexer": (DOCUMENTS, VECTORS, BASES),
    "application": (ANSWERS, PARTIAL_ANSWERS, BATCHES, DOCUMENTS, VECTORS, BASES),
    "gateway": (ANSWERS, PARTIAL_ANSWERS, BATCHES, *UPLOADS),
    "operator": (*ALL_LETTERS, DEAD_LETTER_MARKS, ANSWERS, VECTORS, BASES),
}
WRITES: Mapping[Role, tuple[Topic, ...]] = {
    "grouper": (GROUPS, GROUPS_BATCH, RETRIEVALS, RETRIEVALS_BATCH, *AGAIN, *LETTERS),
    "searcher": (RETRIEVALS, RETRIEVALS_BATCH, RETRIEVAL_DRAFTS, *AGAIN, *LETTERS),
    "generator": (ANSWERS, PARTIAL_ANSWERS, RETRIEVALS, RETRIEVALS_BATCH, *AGAIN, *LETTERS),
    "indexer": (VECTORS, BASES, DOCUMENTS_DEAD),
    "application": (*QUESTIONS, CANCELS, BATCHES, DOCUMENTS, BASES),
    "gateway": (*QUESTIONS, CANCELS, BATCHES, *UPLOADS),
    "operator": (*QUESTIONS, DEAD_LETTER_MARKS, DOCUMENTS),
}
DELETES: Mapping[Role, tuple[Topic, ...]] = {
    "grouper": AGAIN,
    "searcher": (GROUPS, GROUPS_BATCH),
    "generator": (RETRIEVALS, RETRIEVALS_BATCH),
}
"""Topics whose processed records their reader deletes."""
ROLES: Mapping[Role, str] = {
    "grouper": "the service `carpool grouper`",
    "searcher": "the service `carpool searcher`",
    "generator": "the service `carpool generator`",
    "indexer": "the service `carpool indexer`",
    "application": "publishes questions and documents, and reads answers, also as a batch",
    "gateway": "`carpool gateway`: asks for those who have its keys, and keeps their files",
    "operator": "`carpool topics`, `status`, `dlq` and `groups`",
}
SERVICES: tuple[Role, ...] = ("grouper", "searcher", "generator", "indexer")


@dataclass(frozen=True, order=True)
class Acl:
    """The right to one operation on the resources of one name, or of one prefix."""

    resource: Resource
    name: str
    pattern: Literal["LITERAL", "PREFIXED"]
    operation: Operation


def acls_of(role: Role, settings: KafkaSettings) -> tuple[Acl, ...]:
    """Returns the rights of a role, without duplicates, with the names at the brokers."""
    found = [
        *_topics(settings, READS[role], "READ"),
        *_topics(settings, WRITES[role], "WRITE"),
        *_topics(settings, DELETES.get(role, ()), "DELETE"),
    ]
    if role in SERVICES:
        group = settings.group_of(role)
        found.append(Acl("GROUP", group, "LITERAL", "READ"))
        found.append(Acl("TRANSACTIONAL_ID", f"{group}-", "PREFIXED", "WRITE"))
    elif role == "operator":
        found += _topics(settings, TOPICS, "CREATE")
        found.append(Acl("GROUP", settings.group_of(""), "PREFIXED", "READ"))
        found.append(Acl("TRANSACTIONAL_ID", settings.group_of("dlq"), "LITERAL", "WRITE"))
    if role not in ("application", "gateway"):  # what the checks at start ask
        found += _topics(settings, TOPICS, "DESCRIBE")
        found += _topics(settings, TOPICS, "DESCRIBE_CONFIGS")
        found.append(Acl("CLUSTER", CLUSTER_NAME, "LITERAL", "DESCRIBE_CONFIGS"))
    return tuple(dict.fromkeys(found))


def kafka_acls_lines(acls: Iterable[Acl], *, principal: str, bootstrap: str) -> list[str]:
    """Returns one command line of Kafka's `kafka-acls` for each resource."""
    operations: dict[tuple[str, str, str], list[str]] = {}
    for acl in acls:
        operations.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl.operation)
    lines = []
    for (resource, name, pattern), allowed in operations.items():
        what = {
            "TOPIC": f"--topic {name}",
            "GROUP": f"--group {name}",
            "TRANSACTIONAL_ID": f"--transactional-id {name}",
            "CLUSTER": "--cluster",
        }[resource]
        options = " ".join(f"--operation {each.title().replace('_', '')}" for each in allowed)
        of_prefix = " --resource-pattern-type prefixed" if pattern == "PREFIXED" else ""
        lines.append(
            f"kafka-acls --bootstrap-server {bootstrap} --add --allow-principal {principal} "
            f"{options} {what}{of_prefix}"
        )
    return lines


def _topics(
    settings: KafkaSettings, topics: Iterable[Topic], operation: Operation
) -> Iterator[Acl]:
    for topic in topics:
        yield Acl("TOPIC", settings.broker_topic(topic.name), "LITERAL", operation)
