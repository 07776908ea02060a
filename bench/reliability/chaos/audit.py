"""The audit of every topic: each published question, and where records of it were seen. Pure.

A question is known by its input record: the topic, partition and offset that every later record
names. Topics of the class `batch` count as those of the class `interactive`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set

import msgspec

from bench.reliability.chaos.answer_audit import AnswerAudit, AnswerCounts
from carpool.kafka.records import Message, TopicPartition
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.group import Group, lane_of
from schemas.headers import ATTEMPT_HEADER, ORIGIN_HEADER, REPLAYED_FROM_HEADER
from schemas.record import Source, header
from schemas.scan import Scan
from schemas.topics import (
    ANSWERS,
    BATCH,
    DEAD_LETTER_SUFFIX,
    GROUPS,
    QUERIES,
    QUERY_TOPICS,
    RETRIEVALS,
    RETRY_TOPICS,
    SCANS,
    read_with,
)

WAY = (QUERIES.name, GROUPS.name, RETRIEVALS.name, ANSWERS.name)
"""The topics of a question's way, in order."""
INPUTS = {
    service: tuple(each.name for each in read_with(topic))
    for service, topic in (("grouper", QUERIES), ("searcher", GROUPS), ("generator", RETRIEVALS))
}
"""The topics that each service reads."""
LETTERS = tuple(name + DEAD_LETTER_SUFFIX for name in QUERY_TOPICS)
TOPICS = (
    *(name for names in INPUTS.values() for name in names),
    SCANS.name,
    ANSWERS.name,
    *LETTERS,
)
"""The topics that are read."""
RETRIES = "retries"

INTERACTIVE = {batch.name: name for name, batch in BATCH.items()}

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
    `published_twice`: questions that the client wrote again, although it was acknowledged once;
    `replayed_twice`: dead letters. `lost`: input records without a terminal answer, but those that
    the run `removed`. `duplicates`: records beyond the first, or beyond the first of each try, by
    topic. `foreign`: records about an input record that was not published. `scans_owed`: by lanes
    of scattered groups, to the homes of their queries; `scans_missing`: of these. `retries`:
    records that a service wrote to try a query again. `letters` and `replays`: dead letters, and
    records that replayed one. `violations`: up to 20 of each kind.
    """

    acknowledged: int
    published: int
    unpublished: int
    published_twice: int
    replayed_twice: int
    retries: int
    letters: int
    replays: int
    lost: int
    removed: int
    duplicates: dict[str, int]
    foreign: int
    scans_owed: int
    scans_missing: int
    answers: AnswerCounts
    violations: tuple[Violation, ...]

    @property
    def is_once(self) -> bool:
        """Whether no service wrote anything twice."""
        return not (self.replayed_twice or any(self.duplicates.values()))

    @property
    def holds(self) -> bool:
        """Whether nothing was lost and no service wrote anything twice."""
        return self.is_once and not (self.unpublished or self.lost or self.foreign)


class TopicAudit:
    """Takes every committed record, in any order, and then returns the result."""

    def __init__(self, started_ms: int, answers: AnswerAudit) -> None:
        """`started_ms`: when the run began, epoch milliseconds."""
        self._started_ms = started_ms
        self._answers = answers
        self._query_ids: dict[str, str] = {}
        self._asked: Counter[str] = Counter()
        self._replayed_from: Counter[bytes] = Counter()
        self._retries: Counter[tuple[str, bytes]] = Counter()
        self._scans: Counter[tuple[str, str, int, int]] = Counter()
        self._scans_owed: set[tuple[str, str, int, int]] = set()
        self._letters = 0
        self._seen: dict[str, dict[str, list[str]]] = {topic: {} for topic in WAY}
        self.ends: dict[TopicPartition, int] = {}
        """The offset after the last record of each partition."""

    def take(self, record: Message) -> None:
        """Notes a record of one of `TOPICS`. Raises `RecordError` when it cannot be decoded."""
        at, value = record.source, record.value or b""
        partition = TopicPartition(at.topic, at.partition)
        self.ends[partition] = max(self.ends.get(partition, 0), at.offset + 1)
        run_s = (at.timestamp_ms - self._started_ms) / 1_000
        place = f"{at.partition}/{at.offset} at {run_s:.2f} s"
        topic = INTERACTIVE.get(at.topic, at.topic)
        if at.topic in LETTERS:
            self._letters += 1
        elif at.topic in RETRY_TOPICS:
            origin = header(record.headers, ORIGIN_HEADER) or b""
            first = origin.decode().rpartition("/")[0]  # without its timestamp
            self._retries[first, header(record.headers, ATTEMPT_HEADER) or b""] += 1
        elif topic == QUERIES.name:
            self._query(record, place)
        elif topic == GROUPS.name:
            self._group(decode(Group, value, record.headers), place)
        elif topic == SCANS.name:
            scan = decode(Scan, value, record.headers)
            self._scans[scan.source.place, scan.grouper, scan.window_id, scan.lane] += 1
        elif topic == RETRIEVALS.name:
            retrieval = decode_retrieval(value, record.headers)
            if isinstance(retrieval, Answer) or retrieval.is_final:
                self._note(topic, retrieval.source, place)
        else:
            answer = decode(Answer, value, record.headers)
            self._answers.take(answer, at.timestamp_ms)
            self._note(topic, answer.source, f"{place}, {answer.status}")

    def _group(self, group: Group, place: str) -> None:
        for part, grouped in enumerate(group.queries):
            home = lane_of(grouped.clusters[0], group.lane_count)
            lanes = {lane_of(cluster, group.lane_count) for cluster in grouped.clusters}
            if group.is_scattered and home != group.lane:  # every lane has the group
                if group.lane in lanes:
                    name = (grouped.source.place, group.grouper, group.window_id, group.lane)
                    self._scans_owed.add(name)
                continue
            where = f"{place}, part {part} by {group.grouper}"
            self._note(GROUPS.name, grouped.source, where)

    def _query(self, record: Message, place: str) -> None:
        at = record.source
        if (letter := header(record.headers, REPLAYED_FROM_HEADER)) is not None:
            self._replayed_from[letter] += 1
            self._answers.replayed(at.place)
        query_id = self._query_ids[at.place] = (record.key or b"").decode(errors="replace")
        self._asked[query_id] += letter is None
        self._note(QUERIES.name, at, place)

    def _note(self, topic: str, source: Source | None, place: str) -> None:
        record = "nowhere" if source is None else source.place
        self._seen[topic].setdefault(record, []).append(place)

    def behind(self, committed: Mapping[TopicPartition, int]) -> dict[str, int]:
        """Returns the partitions of inputs with records at or after their committed offset.

        With the number of offsets.
        """
        names = {name for names in INPUTS.values() for name in names}
        gaps = {
            f"{at.topic}/{at.partition}": end - committed.get(at, 0)
            for at, end in sorted(self.ends.items())
            if at.topic in names
        }
        return {place: gap for place, gap in gaps.items() if gap > 0}

    def result(self, acknowledged: Iterable[str], removed: Set[str] = frozenset()) -> AuditResult:
        """Returns the counts.

        `acknowledged`: the id of each question that the brokers acknowledged, with repetitions.
        `removed`: input records that may be lost, because the run removed records of them.
        """
        wanted = Counter(acknowledged)
        replays = sum(self._replayed_from.values())
        tries = Counter(first for first, _ in self._retries)
        answered = self._seen[ANSWERS.name]
        unanswered = [record for record in self._query_ids if record not in answered]
        lost = [record for record in unanswered if record not in removed]
        twice = {
            topic: {
                record: len(places) - 1 - (tries[record] if topic != ANSWERS.name else 0)
                for record, places in self._seen[topic].items()
            }
            for topic in WAY[1:]
        }
        later = {record for topic in WAY[1:] for record in self._seen[topic]}
        foreign = sorted(later - self._query_ids.keys())
        too_often = (self._asked - wanted).keys()
        published_twice = [record for record, name in self._query_ids.items() if name in too_often]
        wrong = {
            "lost": lost,
            "never published": foreign,
            "published twice": published_twice,
            **self._answers.wrong(),
        }
        wrong |= {
            f"twice in {topic}": [record for record, more in counts.items() if more > 0]
            for topic, counts in twice.items()
        }
        duplicates = {
            topic: sum(more for more in counts.values() if more > 0)
            for topic, counts in twice.items()
        }
        return AuditResult(
            acknowledged=wanted.total(),
            published=len(self._query_ids),
            unpublished=(wanted - self._asked).total(),
            published_twice=(self._asked - wanted).total(),
            replayed_twice=sum(count - 1 for count in self._replayed_from.values()),
            retries=self._retries.total(),
            letters=self._letters,
            replays=replays,
            lost=len(lost),
            removed=len(unanswered) - len(lost),
            duplicates=duplicates
            | {
                RETRIES: sum(count - 1 for count in self._retries.values()),
                SCANS.name: sum(count - 1 for count in self._scans.values()),
            },
            foreign=len(foreign),
            scans_owed=len(self._scans_owed),
            scans_missing=len(self._scans_owed - self._scans.keys()),
            answers=self._answers.result(),
            violations=tuple(
                self._violation(what, record)
                for what, records in wrong.items()
                for record in records[:EXAMPLES_MAX]
            ),
        )

    def _violation(self, what: str, record: str) -> Violation:
        seen = {topic: tuple(self._seen[topic].get(record, ())) for topic in WAY}
        return Violation(
            what=what,
            query_id=self._query_ids.get(record, "unknown"),
            record=record,
            seen=seen,
            last_seen=next((topic for topic in reversed(WAY) if seen[topic]), "nowhere"),
        )
