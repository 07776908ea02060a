"""Which clusters the last groups of the log probe: searched ones, and those that still wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from carpool.clock import Clock
from carpool.errors import ConfigError, RetryableError
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.group import Group, GroupedQuery
from schemas.topics import GROUPS, GROUPS_BATCH

_log = structlog.get_logger(__name__)

Int64 = npt.NDArray[np.int64]


class RecentQuery(NamedTuple):
    """A query of the log: its vector, (dim,) float32, and the clusters that it probes."""

    vector: npt.NDArray[np.float32]
    clusters: Int64


RecentProbes = Callable[[str], list[RecentQuery]]
"""Returns the recent queries of an index version, in the order of arrival. Blocks."""

RECORDS = 200
"""Groups that are read of each partition. VectorLiteRAG (4.1) profiles 100 batches."""
TIMEOUT_S = 10.0
POLL_S = 0.2


def no_recent_probes(index_version: str) -> list[RecentQuery]:
    """Returns nothing: for searchers without Kafka."""
    return []


def probes_of_log(settings: KafkaSettings, clock: Clock) -> RecentProbes:
    """Returns a function that reads the last `RECORDS` groups of each lane, of both classes.

    After `TIMEOUT_S` it returns what it has read by then. Where brokers do not answer, it logs that
    and returns nothing: the shard then starts empty.
    """

    def read(index_version: str) -> list[RecentQuery]:
        messages: list[Message] = []
        try:
            with TopicReader(settings, clock, name="hot-shard") as reader:
                messages = _last(reader)
        except (ConfigError, RetryableError) as error:
            _log.warning("the hot shard does not know earlier questions", error=str(error))
        queries = [query for each in messages for query in _queries(each, index_version)]
        return [
            RecentQuery(
                np.frombuffer(query.vector, "<f4").astype(np.float32),
                np.array(query.clusters, np.int64),
            )
            # Brokers send one partition after the other.
            for query in sorted(queries, key=lambda query: query.arrival_us)
        ]

    return read


def _last(reader: TopicReader) -> list[Message]:
    starts = {}
    for topic in (GROUPS.name, GROUPS_BATCH.name):
        for at in reader.partitions(topic):
            low, high = reader.bounds(at)
            if high > low:
                starts[at] = max(low, high - RECORDS)
    if not starts:
        return []
    reader.add(starts)
    messages: list[Message] = []
    left, until_s = set(starts), time.monotonic() + TIMEOUT_S
    while left and time.monotonic() < until_s:
        batch = reader.poll(RECORDS, POLL_S)
        messages += batch.messages
        left -= batch.ends.keys()
    return messages


def _queries(message: Message, index_version: str) -> tuple[GroupedQuery, ...]:
    try:
        group = decode(Group, message.value, message.headers)
    except RecordError:
        return ()  # the searcher reports the record when it reads it
    return group.queries if group.index_version == index_version else ()
