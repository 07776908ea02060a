"""Judges where a consumer group is in its partitions: what is missing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from carpool.kafka.clients import Position
from carpool.kafka.move_position import unprocessed_before
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from schemas.topics import ANSWERS, QUERIES, QUERY_TOPICS

HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a consumer group is in a partition: committed offset, first and next offset of the log.

    `metadata`: of the commit. `first_ms`: when the first record was written, epoch milliseconds.
    0: unknown, or there is no record.
    """

    committed: int
    first: int
    end: int
    metadata: str = ""
    first_ms: int = 0

    @property
    def has_gap(self) -> bool:
        """Whether records were deleted before the group processed them."""
        return 0 <= self.committed < self.first


def forgotten_group(
    settings: KafkaSettings, standings: Mapping[TopicPartition, Standing]
) -> Iterator[str]:
    """A group that has committed nothing reads all questions, although there are answers."""
    asked, answers = (
        [each for at, each in standings.items() if at.topic in map(settings.broker_topic, names)]
        for names in (QUERY_TOPICS, (ANSWERS.name,))
    )
    has_records = [any(each.first < each.end for each in found) for found in (asked, answers)]
    if all(has_records) and all(each.committed < 0 for each in asked):
        yield (
            f"the consumer group {settings.group_of('grouper')} has no committed offsets, and "
            f"{settings.broker_topic(ANSWERS.name)} has answers: its offsets were deleted or have "
            "expired, or it had another name (kafka.prefix). All questions would be read "
            "again, and those whose answers are no longer known answered again. Give the group its "
            f"name back, or accept that: `carpool groups reset grouper {QUERIES.name}/0/0` for "
            "each partition, or a larger offset"
        )


def missing_records(at: TopicPartition, standing: Standing) -> Iterator[str]:
    """Yields what the group can no longer read in a partition, which then waits, in words."""
    where = f"{at.topic}[{at.partition}]"
    waits = "This partition waits, the others go on."
    if standing.has_gap:
        count = unprocessed_before(Position(standing.committed, standing.metadata), standing.first)
        written = datetime.fromtimestamp(standing.first_ms / 1_000, UTC).isoformat(" ", "seconds")
        yield (
            f"{where}: {count} records that were never processed are gone"
            f"{f', written before {written}' if standing.first_ms else ''}: the group continues "
            f"from offset {standing.committed}, and the log begins at {standing.first}. {waits} "
            "Lengthen the topic's retention; `carpool groups accept-loss` accepts the loss of all"
        )
    elif standing.committed > standing.end:
        yield (
            f"{where}: the group continues from offset {standing.committed}, and the log ends at "
            f"{standing.end}: the topic was created again, or its broker lost records. {waits} "
            "Find out which; `carpool groups reset` reads on from another offset"
        )


def hours(time_ms: int) -> str:
    """Returns a time in hours."""
    return f"{time_ms / HOUR_MS:.3g} h"
