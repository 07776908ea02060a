"""The one list of topics: partitioning, retention, and the largest record of each."""

from __future__ import annotations

from typing import Literal

import msgspec

KIB = 1024
MIB = 1024 * KIB
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
UNTIL_PROCESSED = -1
"""The retention of a topic between two services: a long outage of the later one loses nothing."""
FOR_EVER = -2
"""The retention of a topic without another copy of what it has."""
DEAD_LETTER_EXTRA_BYTES = 64 * KIB
DEAD_LETTER_SUFFIX = ".dlq"


BATCH_PRIORITY = 10_000
"""What the class `batch` adds to a priority: more than a query may ask for."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. `max_message_bytes` bounds a record with its headers.

    Records are deleted after `retention_ms`. Those of a topic that is kept `UNTIL_PROCESSED` do not
    expire: the service that reads them deletes them when they are processed, except the last ones.
    `FOR_EVER`: the newest record of each key is never deleted, of a topic without keys none. After
    `compaction_lag_ms` only this one is kept; None: no compaction. A null record, which deletes a
    key, is kept for `nulls_ms`; None: as the brokers say. `is_dated_by_brokers`: the time of a
    record is that of its broker. `partition_by` "none": there is one partition.
    """

    name: str
    partition_by: Literal["query_id", "lane", "source", "document", "none"] = "query_id"
    retention_ms: int
    max_message_bytes: int = MIB
    compaction_lag_ms: int | None = None
    nulls_ms: int | None = None
    is_dated_by_brokers: bool = False
    best_effort: bool = False
    purpose: str

    @property
    def cleanup(self) -> tuple[str, ...]:
        """What brokers do with old records (`cleanup.policy`)."""
        compacts = () if self.compaction_lag_ms is None else ("compact",)
        return compacts if compacts and self.retention_ms == FOR_EVER else (*compacts, "delete")


QUERIES = Topic(
    name="rag.queries.v1",
    retention_ms=7 * DAY_MS,
    purpose="questions, as applications publish them",
)
RETRIES = Topic(
    name="rag.retries.v1",
    retention_ms=UNTIL_PROCESSED,
    purpose="queries that are tried again, and searches of workflows; written by services alone",
)
GROUPS = Topic(
    name="rag.groups.v1",
    partition_by="lane",
    retention_ms=UNTIL_PROCESSED,
    max_message_bytes=8 * MIB,
    purpose="ordered groups of queries that share clusters; partition = lane",
)
RETRIEVALS = Topic(
    name="rag.retrievals.v1",
    retention_ms=UNTIL_PROCESSED,
    max_message_bytes=4 * MIB,
    purpose="one final retrieval for each search, a workflow that waits for the model, or the "
    "answer of a query that ended earlier",
)
RETRIEVAL_DRAFTS = Topic(
    name="rag.retrievals.draft.v1",
    retention_ms=HOUR_MS,
    best_effort=True,
    purpose="drafts: the passages that long searches have found so far",
)
ANSWERS = Topic(
    name="rag.answers.v1",
    retention_ms=7 * DAY_MS,
    compaction_lag_ms=DAY_MS,
    purpose="terminal answers; the generator alone writes them, and skips records that have one",
)
KEY_SEPARATOR = "@"
"""Between the query id and the record in the key of an answer that must not supersede another."""
PARTIAL_ANSWERS = Topic(
    name="rag.answers.partial.v1",
    retention_ms=HOUR_MS,
    best_effort=True,
    purpose="pieces of answers as they are written, and finished steps of workflows, best effort",
)
CANCELS = Topic(
    name="rag.cancels.v1",
    retention_ms=DAY_MS,
    max_message_bytes=64 * KIB,
    best_effort=True,
    purpose="questions that applications withdraw, best effort",
)
BATCHES = Topic(
    name="rag.batches.v1",
    retention_ms=FOR_EVER,
    compaction_lag_ms=HOUR_MS,
    purpose="what is known of each batch: its file, its state, and who works on it",
)
FILES = Topic(
    name="rag.files.v1",
    retention_ms=7 * DAY_MS,
    compaction_lag_ms=HOUR_MS,
    purpose="files that the gateway keeps: name, owner, and where their pieces are; null deletes",
)
FILE_PIECES = Topic(
    name="rag.files.pieces.v1",
    retention_ms=7 * DAY_MS,
    purpose="the content of these files",
)
DOCUMENTS = Topic(
    name="rag.documents.v1",
    partition_by="document",
    retention_ms=FOR_EVER,
    compaction_lag_ms=HOUR_MS,
    nulls_ms=7 * DAY_MS,
    is_dated_by_brokers=True,
    purpose="documents of the corpus: the newest revision of each; null deletes",
)
VECTORS = Topic(
    name="rag.vectors.v1",
    partition_by="document",
    retention_ms=FOR_EVER,
    max_message_bytes=2 * MIB,
    compaction_lag_ms=HOUR_MS,
    is_dated_by_brokers=True,
    purpose="what the indexer makes of documents: passages with vectors, or that there are none",
)
BASES = Topic(
    name="rag.bases.v1",
    partition_by="none",
    retention_ms=FOR_EVER,
    purpose="saved bases: index, and the position up to which it has the documents",
)


def dead_letters_of(topic: Topic) -> Topic:
    """Returns the dead-letter topic of `topic`; each of its records fits, with added headers."""
    return Topic(
        name=topic.name + DEAD_LETTER_SUFFIX,
        partition_by="source",
        retention_ms=14 * DAY_MS,
        max_message_bytes=topic.max_message_bytes + DEAD_LETTER_EXTRA_BYTES,
        purpose=f"records of {topic.name} that could not be used, as raw bytes with the reason in "
        "headers",
    )


def batch_of(topic: Topic) -> Topic:
    """Returns the topic of the class `batch` that belongs to `topic`."""
    return msgspec.structs.replace(
        topic,
        name=topic.name.removesuffix(".v1") + ".batch.v1",
        purpose=f"{topic.purpose}; of the class `batch`",
    )


QUERIES_BATCH = batch_of(QUERIES)
RETRIES_BATCH = batch_of(RETRIES)
GROUPS_BATCH = batch_of(GROUPS)
RETRIEVALS_BATCH = batch_of(RETRIEVALS)

BATCH: dict[str, Topic] = {
    QUERIES.name: QUERIES_BATCH,
    RETRIES.name: RETRIES_BATCH,
    GROUPS.name: GROUPS_BATCH,
    RETRIEVALS.name: RETRIEVALS_BATCH,
}
"""The `batch` topic of each `interactive` topic, by name.

A query keeps its class in all services, so the backlog of one class never delays the other.
"""


def is_batch(name: str) -> bool:
    """Returns whether records of the topic `name` are of the class `batch`."""
    return any(topic.name == name for topic in BATCH.values())


def priority_in_class(source: str, priority: int) -> int:
    """Returns a query's priority among both classes; lower is sooner."""
    return priority + BATCH_PRIORITY if is_batch(source) else priority


def in_class_of(source: str, topic: Topic) -> Topic:
    """Returns the topic for results of a record of `source`: `topic`, or its `batch` topic."""
    return BATCH[topic.name] if is_batch(source) else topic


QUERY_TOPICS = (QUERIES.name, QUERIES_BATCH.name)
"""What applications write."""
RETRY_TOPICS = (RETRIES.name, RETRIES_BATCH.name)
"""What services write: a query that is tried again, or a search of a workflow, in its class."""


def read_with(topic: Topic) -> tuple[Topic, ...]:
    """Returns the topics of a service whose first is `topic`: its retries too, in all classes."""
    interactive = (QUERIES, RETRIES) if topic == QUERIES else (topic,)
    return interactive + tuple(BATCH[each.name] for each in interactive if each.name in BATCH)


QUERIES_DEAD = dead_letters_of(QUERIES)
QUERIES_BATCH_DEAD = dead_letters_of(QUERIES_BATCH)
DOCUMENTS_DEAD = dead_letters_of(DOCUMENTS)

DEAD_LETTER_MARKS = Topic(
    name="rag.dlq.marks.v1",
    partition_by="source",
    retention_ms=30 * DAY_MS,
    purpose="which dead letters were replayed or dropped; kept longer than any of them",
)

TOPICS: tuple[Topic, ...] = (
    QUERIES,
    QUERIES_BATCH,
    RETRIES,
    RETRIES_BATCH,
    GROUPS,
    GROUPS_BATCH,
    RETRIEVALS,
    RETRIEVALS_BATCH,
    RETRIEVAL_DRAFTS,
    ANSWERS,
    PARTIAL_ANSWERS,
    CANCELS,
    BATCHES,
    FILES,
    FILE_PIECES,
    DOCUMENTS,
    VECTORS,
    BASES,
    QUERIES_DEAD,
    QUERIES_BATCH_DEAD,
    DOCUMENTS_DEAD,
    DEAD_LETTER_MARKS,
)

MESSAGE_BYTES_MAX = max(topic.max_message_bytes for topic in TOPICS)
