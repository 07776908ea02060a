"""The one list of topics: who partitions them by what, how long they keep records, how large a record may be."""

from __future__ import annotations

from typing import Literal

import msgspec

KIB = 1024
MIB = 1024 * KIB
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DEAD_LETTER_EXTRA_BYTES = 64 * KIB
DEAD_LETTER_SUFFIX = ".dlq"


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. `max_message_bytes` bounds a record with its headers.

    Under `cleanup` "delete" records go after `retention_ms`; under "compact" they are kept whole for `retention_ms`, and
    the newest of each key for good.
    """

    name: str
    partition_by: Literal["query_id", "lane", "source"]
    retention_ms: int
    max_message_bytes: int
    cleanup: Literal["delete", "compact"] = "delete"
    best_effort: bool = False
    purpose: str


QUERIES = Topic(
    name="rag.queries.v1",
    partition_by="query_id",
    retention_ms=7 * DAY_MS,
    max_message_bytes=MIB,
    purpose="questions, as applications publish them",
)
GROUPS = Topic(
    name="rag.groups.v1",
    partition_by="lane",
    retention_ms=DAY_MS,
    max_message_bytes=8 * MIB,
    purpose="ordered groups of queries that share clusters; partition = lane",
)
RETRIEVALS = Topic(
    name="rag.retrievals.v1",
    partition_by="query_id",
    retention_ms=DAY_MS,
    max_message_bytes=4 * MIB,
    purpose="exactly one final retrieval a query",
)
ANSWERS = Topic(
    name="rag.answers.v1",
    partition_by="query_id",
    retention_ms=7 * DAY_MS,
    max_message_bytes=MIB,
    cleanup="compact",
    purpose="terminal answers, and the ledger of what was answered",
)
PARTIAL_ANSWERS = Topic(
    name="rag.answers.partial.v1",
    partition_by="query_id",
    retention_ms=HOUR_MS,
    max_message_bytes=MIB,
    best_effort=True,
    purpose="pieces of answers as they are written, best effort",
)


def dead_letters_of(topic: Topic) -> Topic:
    """Returns the dead-letter topic of `topic`: everything that its source takes fits, with the headers we add."""
    return Topic(
        name=topic.name + DEAD_LETTER_SUFFIX,
        partition_by="source",
        retention_ms=14 * DAY_MS,
        max_message_bytes=topic.max_message_bytes + DEAD_LETTER_EXTRA_BYTES,
        purpose=f"records of {topic.name} that could not be used, as raw bytes with the reason in headers",
    )


QUERIES_DEAD = dead_letters_of(QUERIES)

TOPICS: tuple[Topic, ...] = (QUERIES, GROUPS, RETRIEVALS, ANSWERS, PARTIAL_ANSWERS, QUERIES_DEAD)

MESSAGE_BYTES_MAX = max(topic.max_message_bytes for topic in TOPICS)
