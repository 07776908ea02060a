"""The books over every topic: what was published, and where it was seen. Pure functions and a
ledger; no brokers.

What is counted is the input record, not the query id: by the place in `rag.queries.v1` that every
later record names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from schemas.answer import Answer
from schemas.codec import decode
from schemas.group import Group
from schemas.headers import ORIGIN_HEADER
from schemas.record import Headers, Source, header
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS

TOPICS = (QUERIES.name, GROUPS.name, RETRIEVALS.name, ANSWERS.name)
"""The topics that are read, in the order of a query's way."""

EXAMPLES_MAX = 20


class SeenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A committed record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str
    value: bytes
    headers: Headers


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with one input record. `seen`: where it was seen, by topic: partition/offset,
    seconds into the run.
    """

    what: str
    query_id: str
    record: str
    seen: dict[str, tuple[str, ...]]
    last_seen: str


class ChaosBooks(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all input records. `lost` have no terminal answer; `duplicates` counts by
    topic what came beyond the first.

    `unpublished`: questions that the brokers acknowledged and that are not in their topic.
    `foreign`: records about an input record that nobody published. `reentered`: queries that a
    service sent round again. `faults` names up to 20 of each kind.
    """

    acknowledged: int
    published: int
    unpublished: int
    published_twice: int
    reentered: int
    lost: int
    duplicates: dict[str, int]
    foreign: int
    statuses: dict[str, int]
    faults: tuple[Fault, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was lost and nothing came twice."""
        wrong = (
            self.unpublished,
            self.published_twice,
            self.lost,
            self.foreign,
            *self.duplicates.values(),
        )
        return not any(wrong)


class TopicLedger:
    """Takes every committed record, in any order, and closes the books."""

    def __init__(self, started_ms: int) -> None:
        """`started_ms`: when the run began, epoch milliseconds; faults say when in it a record was
        written.
        """
        self._started_ms = started_ms
        self._query_ids: dict[str, str] = {}
        self._reentered = 0
        self._seen: dict[str, dict[str, list[str]]] = {topic: {} for topic in TOPICS}
        self._statuses: Counter[str] = Counter()

    def take(self, record: SeenRecord) -> None:
        """Notes a record of one of `TOPICS`. Raises `RecordError` for one that cannot be
        decoded.
        """
        place = (
            f"{record.partition}/{record.offset} at "
            f"{(record.timestamp_ms - self._started_ms) / 1_000:.2f} s"
        )
        match record.topic:
            case QUERIES.name:
                self._query(record, place)
            case GROUPS.name:
                group = decode(Group, record.value, record.headers)
                for part, grouped in enumerate(group.queries):
                    self._note(
                        record.topic, grouped.source, f"{place}, part {part} by {group.grouper}"
                    )
            case RETRIEVALS.name:
                retrieval = decode(Retrieval, record.value, record.headers)
                if retrieval.is_final:
                    self._note(record.topic, retrieval.source, place)
            case ANSWERS.name:
                answer = decode(Answer, record.value, record.headers)
                self._statuses[answer.status] += 1
                self._note(record.topic, answer.source, f"{place}, {answer.status}")

    def _query(self, record: SeenRecord, place: str) -> None:
        if header(record.headers, ORIGIN_HEADER) is not None:
            self._reentered += 1
            return
        source = Source(topic=record.topic, partition=record.partition, offset=record.offset)
        self._query_ids[_name(source)] = record.key
        self._note(record.topic, source, place)

    def _note(self, topic: str, source: Source | None, place: str) -> None:
        self._seen[topic].setdefault("nowhere" if source is None else _name(source), []).append(
            place
        )

    def close(self, acknowledged: Iterable[str]) -> ChaosBooks:
        """Returns the books. `acknowledged`: ids of the questions that the brokers took."""
        wanted = set(acknowledged)
        times_published = Counter(self._query_ids.values())
        lost = [record for record in self._query_ids if record not in self._seen[ANSWERS.name]]
        twice = {
            topic: [record for record, places in self._seen[topic].items() if len(places) > 1]
            for topic in TOPICS[1:]
        }
        foreign = sorted(
            {record for topic in TOPICS[1:] for record in self._seen[topic]}
            - self._query_ids.keys()
        )
        kinds = {
            "lost": lost,
            **{f"twice in {topic}": twice[topic] for topic in twice},
            "never published": foreign,
        }
        faults = [
            self._fault(what, record)
            for what, records in kinds.items()
            for record in records[:EXAMPLES_MAX]
        ]
        return ChaosBooks(
            acknowledged=len(wanted),
            published=len(self._query_ids),
            unpublished=len(wanted - times_published.keys()),
            published_twice=sum(count - 1 for count in times_published.values()),
            reentered=self._reentered,
            lost=len(lost),
            duplicates={
                topic: sum(len(self._seen[topic][record]) - 1 for record in records)
                for topic, records in twice.items()
            },
            foreign=len(foreign),
            statuses=dict(sorted(self._statuses.items())),
            faults=tuple(faults),
        )

    def _fault(self, what: str, record: str) -> Fault:
        seen = {topic: tuple(self._seen[topic].get(record, ())) for topic in TOPICS}
        last = next((topic for topic in reversed(TOPICS) if seen[topic]), "nowhere")
        return Fault(
            what=what,
            query_id=self._query_ids.get(record, "unknown"),
            record=record,
            seen=seen,
            last_seen=last,
        )


def fault_lines(faults: Iterable[Fault]) -> list[str]:
    """Returns a line for each fault: what, which, and where it was seen."""
    return [
        f"{fault.what}: {fault.query_id} ({fault.record}), last seen in {fault.last_seen}: "
        f"{_trace(fault.seen)}"
        for fault in faults
    ]


def _trace(seen: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(f"{topic} {' and '.join(places) or 'never'}" for topic, places in seen.items())


def _name(source: Source) -> str:
    return source.place
