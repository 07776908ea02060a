"""Judges where a consumer group is in its partitions, and moves it as an operator asks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from carpool.errors import ConfigError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import (
    Completed,
    Head,
    decode_metadata,
    encode_metadata,
    head_of,
    with_head,
)
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from schemas.topics import ANSWERS, QUERIES, QUERY_TOPICS

HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a consumer group is in a partition: committed offset, first and next offset of the log.

    `metadata` is that of the commit. The first record was written at `first_ms`, epoch
    milliseconds; 0: unknown, or there is no record.
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


def skipped(now: Position, offset: int) -> Position:
    """Returns the position once the record at `offset` counts as complete.

    Raises `ConfigError` for a record that is complete already.
    """
    low, completed = _known(now)
    if offset < low or offset in completed.whole:
        raise ConfigError(f"the record at {offset} is complete already")
    completed.whole.add(offset, offset)
    completed.parts.pop(offset, None)
    first = next(iter(completed.whole))
    if first[0] == low:
        low = first[1] + 1
    return _position(now, low, completed)


def reset_to(now: Position, offset: int) -> Position:
    """Returns the position that reads from `offset` on, and repeats nothing after the old one."""
    return _position(now, offset, decode_metadata(now.offset or 0, now.metadata))


def unprocessed_before(now: Position, offset: int) -> int:
    """Returns how many offsets before this one are not complete: at most so many records."""
    low, completed = _known(now)
    still = completed.whole.copy()
    still.discard_before(offset)
    return offset - low - (len(completed.whole) - len(still))


def _known(now: Position) -> tuple[int, Completed]:
    if now.offset is None:
        raise ConfigError("the group has committed nothing for this partition")
    return now.offset, decode_metadata(now.offset, now.metadata)


def _position(now: Position, low: int, completed: Completed) -> Position:
    completed.whole.discard_before(low)
    parts = {offset: done for offset, done in completed.parts.items() if offset >= low}
    metadata = encode_metadata(low, Completed(completed.whole, parts))
    owner = head_of(now.metadata).instance_id
    return Position(low, with_head(metadata, Head(owner, None)))
