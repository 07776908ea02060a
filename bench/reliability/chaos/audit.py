"""The audit of every topic: each published question, and where records of it were seen. Pure.

A question is known by its input record: the partition and offset in `rag.queries.v1` that every
later record names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from carpool.kafka.records import Message
from schemas.answer import Answer
from schemas.codec import decode
from schemas.group import Group
from schemas.record import Source
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIES, RETRIEVALS

TOPICS = (QUERIES.name, GROUPS.name, RETRIEVALS.name, ANSWERS.name)
"""The topics of a question's way, in order."""
TOPICS_READ = (*TOPICS, RETRIES.name)

EXAMPLES_MAX = 20


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one input record.

    `seen`: the places where it was seen, by topic: partition/offset, seconds of the run.
    """

    what: str
    query_id: str
    record: str
    seen: dict[str, tuple[str, ...]]
    last_seen: str

    def line(self) -> str:
        """Returns the violation as one line of text."""
        places = "; ".join(
            f"{topic} {' and '.join(found) or 'never'}" for topic, found in self.seen.items()
        )
        return (
            f"{self.what}: {self.query_id} ({self.record}), last seen in {self.last_seen}: {places}"
        )


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts over all input records.

    `unpublished`: questions that the brokers acknowledged and that are not in their topic.
    `lost`: input records without a terminal answer. `duplicates`: records beyond the first, by
    topic. `foreign`: records about an input record that was not published. `reentered`: retries.
    `violations`: up to 20 of each kind.
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
    violations: tuple[Violation, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was lost and nothing came twice."""
        counts = (self.unpublished, self.published_twice, self.lost, self.foreign)
        return not any((*counts, *self.duplicates.values()))


class TopicAudit:
    """Takes every committed record, in any order, and then returns the result."""

    def __init__(self, started_ms: int) -> None:
        """`started_ms`: when the run began, epoch milliseconds."""
        self._started_ms = started_ms
        self._query_ids: dict[str, str] = {}
        self._reentered = 0
        self._seen: dict[str, dict[str, list[str]]] = {topic: {} for topic in TOPICS}
        self._statuses: Counter[str] = Counter()

    def take(self, record: Message) -> None:
        """Notes a record of `TOPICS_READ`. Raises `RecordError` when it cannot be decoded."""
        at, value = record.source, record.value or b""
        run_s = (at.timestamp_ms - self._started_ms) / 1_000
        place = f"{at.partition}/{at.offset} at {run_s:.2f} s"
        match at.topic:
            case RETRIES.name:
                self._reentered += 1
            case QUERIES.name:
                self._query_ids[at.place] = (record.key or b"").decode(errors="replace")
                self._note(at.topic, at, place)
            case GROUPS.name:
                group = decode(Group, value, record.headers)
                for part, grouped in enumerate(group.queries):
                    where = f"{place}, part {part} by {group.grouper}"
                    self._note(at.topic, grouped.source, where)
            case RETRIEVALS.name:
                retrieval = decode(Retrieval, value, record.headers)
                if retrieval.is_final:
                    self._note(at.topic, retrieval.source, place)
            case ANSWERS.name:
                answer = decode(Answer, value, record.headers)
                self._statuses[answer.status] += 1
                self._note(at.topic, answer.source, f"{place}, {answer.status}")

    def _note(self, topic: str, source: Source | None, place: str) -> None:
        record = "nowhere" if source is None else source.place
        self._seen[topic].setdefault(record, []).append(place)

    def result(self, acknowledged: Iterable[str]) -> AuditResult:
        """Returns the counts. `acknowledged`: ids of questions that the brokers acknowledged."""
        wanted = set(acknowledged)
        times_published = Counter(self._query_ids.values())
        lost = [record for record in self._query_ids if record not in self._seen[ANSWERS.name]]
        twice = {
            topic: [record for record, places in self._seen[topic].items() if len(places) > 1]
            for topic in TOPICS[1:]
        }
        later = {record for topic in TOPICS[1:] for record in self._seen[topic]}
        foreign = sorted(later - self._query_ids.keys())
        wrong = {"lost": lost, "never published": foreign}
        wrong |= {f"twice in {topic}": records for topic, records in twice.items()}
        return AuditResult(
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
            violations=tuple(
                self._violation(what, record)
                for what, records in wrong.items()
                for record in records[:EXAMPLES_MAX]
            ),
        )

    def _violation(self, what: str, record: str) -> Violation:
        seen = {topic: tuple(self._seen[topic].get(record, ())) for topic in TOPICS}
        return Violation(
            what=what,
            query_id=self._query_ids.get(record, "unknown"),
            record=record,
            seen=seen,
            last_seen=next((topic for topic in reversed(TOPICS) if seen[topic]), "nowhere"),
        )
