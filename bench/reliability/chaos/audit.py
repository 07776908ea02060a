"""The audit of every topic: each published question, and where records of it were seen. Pure.

A question is known by its input record: the topic, partition and offset that every later record
names. A workflow has a record for each of its steps: each record counts with the number of steps
that were finished before it. Topics of the class `batch` count as those of the class `interactive`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from bench.reliability.chaos.questions import ALWAYS, ChaosQuestion
from bench.reliability.chaos.workflows import wrong_in
from carpool.kafka.records import Message, TopicPartition
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.group import Group, lane_of
from schemas.headers import ATTEMPT_HEADER, ORIGIN_HEADER, REPLAYED_FROM_HEADER
from schemas.hit import Hit
from schemas.query import Query, finished_steps
from schemas.record import Source, header
from schemas.retrieval import Retrieval
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
FAILED = "failed without a cause in the load"
OTHER_PASSAGES = "other passages than without faults"
OTHER_TEXT = "another text than that of its question"
AGAIN = "generated again"
WRONG_ANSWERS = (FAILED, OTHER_PASSAGES, OTHER_TEXT, AGAIN)
SIDE_BY_SIDE_MAX = 3
"""Texts that a program of the run has generated at once."""


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts over all input records.

    `statuses`: of the answers. `letters` and `replays`: dead letters, and records that replayed
    one. `removed`: without an answer, because the run removed records of them. `generated`: `ok`
    answers that repeat no other. `reused`: ids that have only the answer to an equal prompt.
    `workflows`: `ok` answers of these; `steps`: records of their steps, `texts` of which were
    generated. `read_again`: workflows that were open when offsets were deleted. `unfinished`: calls
    that these, and withdrawn questions, may have had beyond the counted ones.
    `slowest_s`: the longest time from a question to its answer. `wrong`: how many of each kind.
    `violations`: up to 20 of each kind, with the places where the record was seen.
    """

    published: int
    statuses: dict[str, int]
    letters: int
    replays: int
    removed: int
    generated: int
    reused: int
    workflows: int
    steps: int
    texts: int
    read_again: int
    unfinished: int
    slowest_s: float
    wrong: dict[str, int]
    violations: tuple[str, ...]


class TopicAudit:
    """Takes every committed record, in any order, and then returns the result."""

    def __init__(
        self, started_ms: int, questions: Iterable[ChaosQuestion], corpus: Mapping[str, Hit]
    ) -> None:
        """`started_ms`: when the run began, epoch milliseconds. `corpus`: all passages by id."""
        self._started_ms = started_ms
        self._questions, self._corpus = {each.id: each for each in questions}, corpus
        self._query_ids: dict[str, str] = {}
        self._texts: dict[str, tuple[int, int]] = {}  # finished steps, and generated texts of them
        self._asked: Counter[str] = Counter()
        self._replays: dict[str, bytes] = {}
        self._retries: Counter[tuple[str, bytes, int]] = Counter()
        self._scans: Counter[tuple[str, str, int, int]] = Counter()
        self._letters = 0
        self._seen: dict[str, dict[str, list[str]]] = {topic: {} for topic in WAY}
        self._records: Counter[tuple[str, str, int]] = Counter()  # by topic, question and steps
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
            self._retry(record)
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
            self._retrieval(decode_retrieval(value, record.headers), place)
        else:
            answer = decode(Answer, value, record.headers)
            if answer.source is not None:  # the first answer to each input record counts
                self._answers.setdefault(answer.source.place, (answer, at.timestamp_ms))
            self._note(topic, answer.source, f"{place}, {answer.status}")

    def _retry(self, record: Message) -> None:
        origin = header(record.headers, ORIGIN_HEADER) or b""
        first = origin.decode().rpartition("/")[0]  # without its timestamp
        steps = self._steps(first, decode(Query, record.value, record.headers))
        self._retries[first, header(record.headers, ATTEMPT_HEADER) or b"", steps] += 1

    def _group(self, group: Group, place: str) -> None:
        for part, grouped in enumerate(group.queries):
            home = lane_of(grouped.clusters[0], group.lane_count)
            if home == group.lane or not group.is_scattered:  # every lane has a scattered group
                where = f"{place}, part {part} by {group.grouper}"
                self._note(GROUPS.name, grouped.source, where, finished_steps(grouped.query))

    def _retrieval(self, retrieval: Retrieval | Answer, place: str) -> None:
        if isinstance(retrieval, Answer):
            self._note(RETRIEVALS.name, retrieval.source, place)
        elif retrieval.is_final:
            steps = self._steps(retrieval.source.place, retrieval.query)
            self._note(RETRIEVALS.name, retrieval.source, place, steps)

    def _note(self, topic: str, source: Source | None, place: str, steps: int = 0) -> None:
        record = "nowhere" if source is None else source.place
        where = f"{place}, after {steps} steps" if steps else place
        self._seen[topic].setdefault(record, []).append(where)
        self._records[topic, record, steps] += 1

    def _steps(self, record: str, query: Query) -> int:
        """Returns how many steps are finished; notes which of them were generated."""
        rounds = () if query.journal is None else query.journal.rounds
        own = [one for round in rounds for one in round if one.hits is None and not one.is_shared]
        found = finished_steps(query), len(own)
        self._texts[record] = max(found, self._texts.get(record, (0, 0)))
        return found[0]

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

    def result(
        self,
        acknowledged: Iterable[str],
        removed: Collection[str] = (),
        deleted_ms: Sequence[int] = (),
    ) -> AuditResult:
        """Returns the counts.

        `acknowledged`: the id of each question that the brokers acknowledged, with repetitions.
        `removed`: input records that may be lost, because the run removed records of them.
        `deleted_ms`: when the offsets of the generator were deleted, epoch milliseconds: it reads
        all records of workflows that were open again.
        """
        again = self._open_at(deleted_ms)
        wanted = Counter(acknowledged)
        answers = [answer for answer, _ in self._answers.values()]
        ok = [each for each in answers if each.status == "ok"]
        own = {each.query_id for each in ok if not each.replayed}
        unanswered = self._query_ids.keys() - self._seen[ANSWERS.name].keys()
        wrong = self._wrong(unanswered - set(removed), again) | self._wrong_answers()
        more = {
            "unpublished": (wanted - self._asked).total(),
            "published twice": (self._asked - wanted).total(),
            "twice: retries": sum(
                count - 1 for key, count in self._retries.items() if key[0] not in again
            ),
            "twice: replays": len(self._replays) - len(set(self._replays.values())),
            f"twice: {SCANS.name}": sum(count - 1 for count in self._scans.values()),
        }
        waits_ms = (
            written_ms - answer.source.timestamp_ms
            for answer, written_ms in self._answers.values()
            if answer.source
        )
        return AuditResult(
            published=len(self._query_ids),
            statuses=dict(sorted(Counter(each.status for each in answers).items())),
            letters=self._letters,
            replays=len(self._replays),
            removed=len(unanswered & set(removed)),
            generated=sum(not each.replayed for each in ok),
            reused=len({each.query_id for each in ok} - own),
            workflows=sum(map(self._is_workflow, ok)),
            steps=sum(steps for steps, _ in self._texts.values()),
            texts=sum(texts for _, texts in self._texts.values()),
            read_again=len(again),
            unfinished=sum((1 + self._texts.get(record, (0, 0))[1]) ** 2 for record in again)
            + sum(
                SIDE_BY_SIDE_MAX if self._is_workflow(each) else 1
                for each in answers
                if each.status == "cancelled"
            ),
            slowest_s=max(waits_ms, default=0) / 1_000,
            wrong={what: len(records) for what, records in wrong.items()} | more,
            violations=tuple(
                self._violation(what, record)
                for what, records in wrong.items()
                for record in records[:EXAMPLES_MAX]
            ),
        )

    def _is_workflow(self, answer: Answer) -> bool:
        question = self._questions.get(answer.query_id)
        return question is not None and question.workflow is not None

    def _open_at(self, times_ms: Sequence[int]) -> set[str]:
        """Returns the input records of workflows that were open at one of these times."""
        return {
            record
            for record, (answer, written_ms) in self._answers.items()
            if self._is_workflow(answer) and answer.source is not None
            if any(answer.source.timestamp_ms <= at_ms <= written_ms for at_ms in times_ms)
        }

    def _wrong(self, lost: Collection[str], again: Collection[str]) -> dict[str, list[str]]:
        """Returns the input records with a wrong number of records, by what is wrong."""
        tries = Counter((first, steps) for first, attempt, steps in self._retries if attempt)
        later = {record for topic in WAY[1:] for record in self._seen[topic]}
        wrong = {"lost": sorted(lost), "never published": sorted(later - self._query_ids.keys())}
        for topic in WAY[1:]:
            is_answer = topic == ANSWERS.name
            wrong[f"twice: {topic}"] = [
                record
                for (found, record, steps), count in self._records.items()
                if found == topic
                and count > 1 + (0 if is_answer else tries[record, steps])
                and (is_answer or record not in again)
            ]
        return wrong

    def _wrong_answers(self) -> dict[str, list[str]]:
        """Returns the input records with a wrong answer, by what is wrong."""
        generated = set[str]()
        wrong: dict[str, list[str]] = {what: [] for what in WRONG_ANSWERS}
        for record, (answer, _) in self._answers.items():
            query_id, is_ok = answer.query_id, answer.status == "ok"
            if record not in self._query_ids:
                continue
            question = self._questions[query_id]
            if not is_ok and not self._may_fail(record, question, answer.status):
                wrong[FAILED].append(record)
            has_text = is_ok or answer.answer is not None
            if (program := question.workflow) is not None:
                if has_text and wrong_in(answer, program, question.text, self._corpus):
                    wrong[OTHER_TEXT].append(record)
            else:
                found = [each.id for each in answer.retrieved]
                if is_ok and found != [hit.doc_id for hit in question.hits]:
                    wrong[OTHER_PASSAGES].append(record)
                if has_text and answer.answer != question.answer:
                    wrong[OTHER_TEXT].append(record)
            if is_ok and not answer.replayed:
                if query_id in generated:
                    wrong[AGAIN].append(record)
                generated.add(query_id)
        return wrong

    def _may_fail(self, record: str, question: ChaosQuestion, status: str) -> bool:
        if status == "cancelled":
            return question.is_withdrawn
        return question.fails == ALWAYS and record not in self._replays

    def _violation(self, what: str, record: str) -> str:
        seen = {topic: self._seen[topic].get(record, []) for topic in WAY}
        last = next((topic for topic in reversed(WAY) if seen[topic]), "nowhere")
        places = "; ".join(
            f"{topic} {' and '.join(found) or 'never'}" for topic, found in seen.items()
        )
        query_id = self._query_ids.get(record, "unknown")
        return f"{what}: {query_id} ({record}), last seen in {last}: {places}"
