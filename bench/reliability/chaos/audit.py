"""The audit of every topic: each published question, and where records of it were seen. Pure.

A question is known by its input record: the topic, partition and offset that every later record
names. Topics of the class `batch` count as those of the class `interactive`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

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
READ = (*(name for names in INPUTS.values() for name in names), SCANS.name, ANSWERS.name, *LETTERS)
"""The topics that are read."""
INTERACTIVE = {batch.name: name for name, batch in BATCH.items()}
EXAMPLES_MAX = 20


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the answers must be. `passages`: the right ids by query id. `texts`: of a query id.

    `dead`: ids that fail until they are replayed. `withdrawn`: ids that may end as `cancelled`.
    """

    passages: Mapping[str, Sequence[str]]
    texts: Callable[[str], Iterable[str | None]]
    dead: Collection[str] = ()
    withdrawn: Collection[str] = ()


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts over all input records.

    `retries`: records that a service wrote to try a query again. `letters` and `replays`: dead
    letters, and records that replayed one. `removed`: without an answer, because the run removed
    records of them. `scans_owed`: by lanes of scattered groups, to the homes of their queries.
    `generated`: `ok` answers that repeat no other. `reused`: ids that have only the answer to an
    equal prompt. `failed_as_meant`: as the load wanted. `slowest_s`: the longest time from a
    question to its answer. `wrong`: how many of each kind. `violations`: up to 20 of each kind,
    with the places where the record was seen.
    """

    published: int
    statuses: dict[str, int]
    retries: int
    letters: int
    replays: int
    removed: int
    scans_owed: int
    generated: int
    replayed: int
    reused: int
    cancelled: int
    failed_as_meant: int
    slowest_s: float
    wrong: dict[str, int]
    violations: tuple[str, ...]


class TopicAudit:
    """Takes every committed record, in any order, and then returns the result."""

    def __init__(self, started_ms: int, expected: Expected) -> None:
        """`started_ms`: when the run began, epoch milliseconds."""
        self._started_ms = started_ms
        self._expected = expected
        self._query_ids: dict[str, str] = {}
        self._asked: Counter[str] = Counter()
        self._replays: dict[str, bytes] = {}
        self._retries: Counter[tuple[str, bytes]] = Counter()
        self._scans: Counter[tuple[str, str, int, int]] = Counter()
        self._scans_owed: set[tuple[str, str, int, int]] = set()
        self._letters = 0
        self._seen: dict[str, dict[str, list[str]]] = {topic: {} for topic in WAY}
        self._answers: dict[str, tuple[Answer, int]] = {}
        self.ends: dict[TopicPartition, int] = {}
        """The offset after the last record of each partition."""

    def take(self, record: Message) -> None:
        """Notes a record of one of `READ`. Raises `RecordError` when it cannot be decoded."""
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
            letter = header(record.headers, REPLAYED_FROM_HEADER)
            query_id = self._query_ids[at.place] = (record.key or b"").decode(errors="replace")
            if letter is None:
                self._asked[query_id] += 1
            else:
                self._replays[at.place] = letter
            self._note(topic, at, place)
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
            if answer.source is not None:  # the first answer to each input record counts
                self._answers.setdefault(answer.source.place, (answer, at.timestamp_ms))
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

    def result(self, acknowledged: Iterable[str], removed: Collection[str] = ()) -> AuditResult:
        """Returns the counts.

        `acknowledged`: the id of each question that the brokers acknowledged, with repetitions.
        `removed`: input records that may be lost, because the run removed records of them.
        """
        wanted = Counter(acknowledged)
        answers = [answer for answer, _ in self._answers.values()]
        ok = [each for each in answers if each.status == "ok"]
        own = {each.query_id for each in ok if not each.replayed}
        unanswered = self._query_ids.keys() - self._seen[ANSWERS.name].keys()
        wrong = self._wrong(wanted, unanswered - set(removed)) | self._wrong_answers()
        more = {
            "unpublished": (wanted - self._asked).total(),
            "published twice": (self._asked - wanted).total(),
            "twice: retries": sum(count - 1 for count in self._retries.values()),
            "twice: replays": len(self._replays) - len(set(self._replays.values())),
            f"twice: {SCANS.name}": sum(count - 1 for count in self._scans.values()),
            "scans missing": len(self._scans_owed - self._scans.keys()),
        }
        return AuditResult(
            published=len(self._query_ids),
            statuses=dict(sorted(Counter(each.status for each in answers).items())),
            retries=self._retries.total(),
            letters=self._letters,
            replays=len(self._replays),
            removed=len(unanswered & set(removed)),
            scans_owed=len(self._scans_owed),
            generated=sum(not each.replayed for each in ok),
            replayed=sum(each.replayed for each in ok),
            reused=len({each.query_id for each in ok} - own),
            cancelled=sum(each.status == "cancelled" for each in answers),
            failed_as_meant=sum(
                each.status not in ("ok", "cancelled") and self._may_fail(record, each)
                for record, (each, _) in self._answers.items()
            ),
            slowest_s=max(
                (
                    written_ms - (answer.source.timestamp_ms if answer.source else written_ms)
                    for answer, written_ms in self._answers.values()
                ),
                default=0,
            )
            / 1_000,
            wrong={what: len(records) for what, records in wrong.items()} | more,
            violations=tuple(
                self._violation(what, record)
                for what, records in wrong.items()
                for record in records[:EXAMPLES_MAX]
            ),
        )

    def _wrong(self, wanted: Counter[str], lost: Collection[str]) -> dict[str, list[str]]:
        """Returns the input records with a wrong number of records, by what is wrong."""
        tries = Counter(first for first, _ in self._retries)
        later = {record for topic in WAY[1:] for record in self._seen[topic]}
        too_often = (self._asked - wanted).keys()
        wrong = {
            "lost": sorted(lost),
            "never published": sorted(later - self._query_ids.keys()),
            "published twice": [
                record for record, name in self._query_ids.items() if name in too_often
            ],
        }
        for topic in WAY[1:]:
            found = self._seen[topic].items()
            may = tries if topic != ANSWERS.name else Counter[str]()
            wrong[f"twice: {topic}"] = [
                record for record, places in found if len(places) > 1 + may[record]
            ]
        return wrong

    def _wrong_answers(self) -> dict[str, list[str]]:
        """Returns the input records with a wrong answer, by what is wrong."""
        expected = self._expected
        wrong: dict[str, list[str]] = {
            "failed without a cause in the load": [],
            "other passages than without faults": [],
            "another text than that of its question": [],
        }
        failed, passages, texts = wrong.values()
        ok: dict[str, list[str]] = defaultdict(list)
        for record, (answer, _) in self._answers.items():
            query_id, is_ok = answer.query_id, answer.status == "ok"
            if record not in self._query_ids:
                continue
            if is_ok:
                ok[query_id].append(record)
                if [each.id for each in answer.retrieved] != list(expected.passages[query_id]):
                    passages.append(record)
            elif not self._may_fail(record, answer):
                failed.append(record)
            if (is_ok or answer.answer is not None) and answer.answer not in expected.texts(
                query_id
            ):
                texts.append(record)
        wrong["generated again"] = [
            record for records in ok.values() for record in self._again(records)
        ]
        return wrong

    def _may_fail(self, record: str, answer: Answer) -> bool:
        if answer.status == "cancelled":
            return answer.query_id in self._expected.withdrawn
        return answer.query_id in self._expected.dead and record not in self._replays

    def _again(self, records: Sequence[str]) -> list[str]:
        """Returns the `ok` answers of an id beyond the first that are not a replay of it."""
        answers = {record: self._answers[record][0] for record in records}
        first = [record for record in records if not answers[record].replayed]
        text = answers[first[0] if first else records[0]].answer
        other = [
            each for each in records if answers[each].replayed and answers[each].answer != text
        ]
        return first[1:] + other

    def _violation(self, what: str, record: str) -> str:
        seen = {topic: self._seen[topic].get(record, []) for topic in WAY}
        last = next((topic for topic in reversed(WAY) if seen[topic]), "nowhere")
        places = "; ".join(
            f"{topic} {' and '.join(found) or 'never'}" for topic, found in seen.items()
        )
        query_id = self._query_ids.get(record, "unknown")
        return f"{what}: {query_id} ({record}), last seen in {last}: {places}"
