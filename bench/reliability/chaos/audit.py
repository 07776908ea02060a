"""The audit of every topic: each published question, and where records of it were seen. Pure.

A question is known by its input record: the topic, partition and offset that every later record
names. A workflow has a record for each of its steps: each record counts with the number of steps
that were finished before it. Topics of the class `batch` count as those of the class `interactive`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from bench.reliability.chaos.answers import AnswerAudit, PublishedQuestion
from bench.reliability.chaos.questions import ChaosQuestion
from carpool.kafka.records import Message, TopicPartition
from schemas import topics
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.group import Group
from schemas.headers import (
    ATTEMPT_HEADER,
    INDEX_HEADER,
    KEY_HEADER,
    ORIGIN_HEADER,
    REPLAYED_FROM_HEADER,
)
from schemas.hit import Hit
from schemas.query import Query, finished_steps
from schemas.record import Headers, Source, header
from schemas.retrieval import Retrieval

WAY = (topics.QUERIES.name, topics.GROUPS.name, topics.RETRIEVALS.name, topics.ANSWERS.name)
"""The topics of a question's way, in order."""
INPUTS = {
    service: tuple(each.name for each in topics.read_with(topic))
    for service, topic in (
        ("grouper", topics.QUERIES),
        ("searcher", topics.GROUPS),
        ("generator", topics.RETRIEVALS),
    )
} | {"indexer": (topics.DOCUMENTS.name,)}
"""The topics that each service reads."""
LETTERS = tuple(name + topics.DEAD_LETTER_SUFFIX for name in topics.QUERY_TOPICS)
CORPUS = (topics.VECTORS.name, topics.BASES.name, topics.DOCUMENTS_DEAD.name)
READ = (
    *(name for names in INPUTS.values() for name in names),
    *(topics.ANSWERS.name, *LETTERS, *CORPUS),
)
"""The topics that are read."""
INTERACTIVE = {batch.name: name for name, batch in topics.BATCH.items()}
EXAMPLES_MAX = 20
ANSWER_CHARS_MAX = 3_000
"""So much of an answer is shown with a violation."""
NOT_FINISHED = "not finished"
OTHER_HEADERS = "headers of another question"
CARRIED = ("correlation_id", "reply_to", KEY_HEADER)
"""Headers that every record of a question has."""
SIDE_BY_SIDE_MAX = 3
"""Texts that a program of the run has generated at once."""


def place_of(source: Source | None) -> str:
    """Returns the input record that a record names."""
    return "nowhere" if source is None else source.place


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts over all input records.

    `statuses`: of the answers. `letters` and `replays`: dead letters, and records that replayed
    one. `removed`: without an answer, because the run removed records of them. `generated`: `ok`
    answers that repeat no other. `reused`: ids that have only the answer to an equal prompt.
    `workflows`: `ok` answers of these; `steps`: records of their steps, `texts` of which were
    generated. `read_again`: workflows that were open when offsets were deleted. `unfinished`: calls
    that these, and withdrawn and late questions, may have had beyond the counted ones.
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
        self._questions = {each.id: each for each in questions}
        self._judge = AnswerAudit(self._questions, corpus)
        self._published: dict[str, PublishedQuestion] = {}
        self._headers: dict[str, set[Headers]] = {}  # of all records of a question, as passed on
        self._versions: dict[str, int] = {}  # of the programs of workflows
        self._inputs: dict[str, list[tuple[TopicPartition, int]]] = {}  # records that services read
        self._texts: dict[str, tuple[int, int]] = {}  # finished steps, and generated texts of them
        self._asked: Counter[str] = Counter()
        self._retries: Counter[tuple[str, bytes, bytes, int]] = Counter()
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
        if at.topic in (topics.DOCUMENTS.name, *CORPUS):
            pass  # another audit takes these
        elif at.topic in LETTERS:
            self._letters += 1
        elif at.topic in topics.RETRY_TOPICS:
            self._retry(record, partition)
        elif topic == topics.QUERIES.name:
            query_id = (record.key or b"").decode(errors="replace")
            self._published[at.place] = PublishedQuestion(query_id, at.timestamp_ms, record.headers)
            self._asked[query_id] += header(record.headers, REPLAYED_FROM_HEADER) is None
            self._note_headers(
                at.place, (*record.headers, (KEY_HEADER, record.key)), partition, at.offset
            )
            self._note(topic, at, place)
        elif topic == topics.GROUPS.name:
            self._group(decode(Group, value, record.headers), place, partition, at.offset)
        elif topic == topics.RETRIEVALS.name:
            found = decode_retrieval(value, record.headers)
            self._note_headers(place_of(found.source), record.headers, partition, at.offset)
            self._retrieval(found, place)
        else:
            answer = decode(Answer, value, record.headers)
            self._note_headers(place_of(answer.source), record.headers)
            if answer.source is not None:  # the first answer to each input record counts
                self._answers.setdefault(answer.source.place, (answer, at.timestamp_ms))
            self._note(topic, answer.source, f"{place}, {answer.status}")

    def _note_headers(
        self, place: str, headers: Headers, at: TopicPartition | None = None, offset: int = 0
    ) -> None:
        """Notes what a record of a question carries, and where a service reads it."""
        carried = tuple((name, header(headers, name)) for name in CARRIED)
        self._headers.setdefault(place, set()).add(carried)
        if at is not None:
            self._inputs.setdefault(place, []).append((at, offset))

    def _retry(self, record: Message, at: TopicPartition) -> None:
        origin = header(record.headers, ORIGIN_HEADER) or b""
        first = origin.decode().rpartition("/")[0]  # without its timestamp
        self._note_headers(first, record.headers, at, record.source.offset)
        steps = self._steps(first, decode(Query, record.value, record.headers))
        attempt, index = (
            header(record.headers, it) or b"" for it in (ATTEMPT_HEADER, INDEX_HEADER)
        )
        self._retries[first, attempt, index, steps] += 1

    def _group(self, group: Group, place: str, at: TopicPartition, offset: int) -> None:
        for part, grouped in enumerate(group.queries):
            self._note_headers(grouped.source.place, grouped.headers, at, offset)
            steps = self._steps(grouped.source.place, grouped.query)
            where = f"{place}, part {part} by {group.grouper}"
            self._note(topics.GROUPS.name, grouped.source, where, steps)

    def _retrieval(self, retrieval: Retrieval | Answer, place: str) -> None:
        if isinstance(retrieval, Answer):
            self._note(topics.RETRIEVALS.name, retrieval.source, place, len(retrieval.steps))
        elif retrieval.is_final:
            steps = self._steps(retrieval.source.place, retrieval.query)
            self._note(topics.RETRIEVALS.name, retrieval.source, place, steps)

    def _note(self, topic: str, source: Source | None, place: str, steps: int = 0) -> None:
        record = place_of(source)
        where = f"{place}, after {steps} steps" if steps else place
        self._seen[topic].setdefault(record, []).append(where)
        self._records[topic, record, steps] += 1

    def _steps(self, record: str, query: Query) -> int:
        """Returns how many steps are finished; notes which of them were generated."""
        rounds = () if query.journal is None else query.journal.rounds
        if query.journal is not None:
            self._versions[record] = query.journal.version
        own = [one for round in rounds for one in round if one.hits is None and not one.is_shared]
        found = finished_steps(query), len(own)
        self._texts[record] = max(found, self._texts.get(record, (0, 0)))
        return found[0]

    def behind(self, committed: Mapping[TopicPartition, int]) -> dict[str, int]:
        """Returns by how many offsets partitions of inputs are committed before their end."""
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
        committed: Mapping[TopicPartition, int] | None = None,
    ) -> AuditResult:
        """Returns the counts.

        `acknowledged`: the id of each question that the brokers acknowledged, with repetitions.
        `removed`: input records that may be lost, because the run removed records of them.
        `deleted_ms`: when the offsets of the generator were deleted, epoch milliseconds. It read
        all records of workflows that were open again. `committed`: offsets; None: all is read. A
        question without an answer is not finished where a record of it is not committed, else lost.
        """
        again = self._open_at(deleted_ms)
        answers = [answer for answer, _ in self._answers.values()]
        ok = [each for each in answers if each.status == "ok"]
        own = {each.query_id for each in ok if not each.replayed}
        unanswered = self._published.keys() - self._seen[topics.ANSWERS.name].keys()
        lost = unanswered - set(removed)
        waiting = {record for record in lost if self._waits(record, committed or self.ends)}
        wrong = {
            **self._wrong(lost - waiting, again),
            NOT_FINISHED: sorted(waiting),
            OTHER_HEADERS: sorted(place for place, own in self._headers.items() if len(own) > 1),
            **self._judge.wrong(self._answers, self._published, self._versions),
        }
        return AuditResult(
            published=len(self._published),
            statuses=dict(sorted(Counter(each.status for each in answers).items())),
            letters=self._letters,
            replays=len(self._replayed()),
            removed=len(unanswered & set(removed)),
            generated=sum(not each.replayed and not each.fetched for each in ok),
            reused=len({each.query_id for each in ok} - own),
            workflows=sum(map(self._is_workflow, ok)),
            steps=sum(steps for steps, _ in self._texts.values()),
            texts=sum(texts for _, texts in self._texts.values()),
            read_again=len(again),
            unfinished=self._unfinished(again, answers),
            slowest_s=max(map(self._wait_ms, self._answers.values()), default=0) / 1_000,
            wrong={what: len(records) for what, records in wrong.items()}
            | self._repeated(Counter(acknowledged), again),
            violations=tuple(
                self._violation(what, record)
                for what, records in wrong.items()
                for record in records[:EXAMPLES_MAX]
            ),
        )

    def _replayed(self) -> list[bytes]:
        return [each.letter for each in self._published.values() if each.letter is not None]

    def _repeated(self, wanted: Counter[str], again: Collection[str]) -> dict[str, int]:
        """Returns how many questions, retries and replays are missing, or there too often."""
        retries = (count - 1 for key, count in self._retries.items() if key[0] not in again)
        letters = self._replayed()
        return {
            "unpublished": (wanted - self._asked).total(),
            "published twice": (self._asked - wanted).total(),
            "twice: retries": sum(retries),
            "twice: replays": len(letters) - len(set(letters)),
        }

    def _unfinished(self, again: Collection[str], answers: Iterable[Answer]) -> int:
        late = [each for each in answers if each.status in ("cancelled", "expired")]
        return sum((1 + self._texts.get(record, (0, 0))[1]) ** 2 for record in again) + sum(
            SIDE_BY_SIDE_MAX if self._is_workflow(each) else 1 for each in late
        )

    @staticmethod
    def _wait_ms(given: tuple[Answer, int]) -> int:
        answer, written_ms = given
        return written_ms - answer.source.timestamp_ms if answer.source else 0

    def _waits(self, record: str, committed: Mapping[TopicPartition, int]) -> bool:
        return any(offset >= committed.get(at, 0) for at, offset in self._inputs.get(record, ()))

    def _is_workflow(self, asked: PublishedQuestion | Answer) -> bool:
        question = self._questions.get(asked.query_id)
        return question is not None and question.workflow is not None

    def _open_at(self, times_ms: Sequence[int]) -> set[str]:
        """Returns the input records of workflows that were open then, or have no answer."""
        ends_ms = {record: written_ms for record, (_, written_ms) in self._answers.items()}
        return {
            record
            for record, asked in self._published.items()
            if self._is_workflow(asked)
            if any(asked.at_ms <= at_ms <= ends_ms.get(record, at_ms) for at_ms in times_ms)
        }

    def _wrong(self, lost: Collection[str], again: Collection[str]) -> dict[str, list[str]]:
        """Returns the input records with a wrong number of records, by what is wrong."""
        tries, planned = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for first, attempt, index, steps in self._retries:
            (planned if index else tries)[first, steps] += bool(attempt)
        later = {record for topic in WAY[1:] for record in self._seen[topic]}
        wrong = {"lost": sorted(lost), "never published": sorted(later - self._published.keys())}
        for topic in WAY[1:]:
            is_answer, is_group = topic == topics.ANSWERS.name, topic == topics.GROUPS.name
            none = Counter[tuple[str, int]]()
            more = none if is_answer else tries + planned if is_group else tries
            wrong[f"twice: {topic}"] = [
                record
                for (found, record, steps), count in self._records.items()
                if found == topic
                and count > 1 + more[record, steps]
                and (is_answer or record not in again)
            ]
        return wrong

    def _violation(self, what: str, record: str) -> str:
        seen = {topic: self._seen[topic].get(record, []) for topic in WAY}
        last = next((topic for topic in reversed(WAY) if seen[topic]), "nowhere")
        places = "; ".join(
            f"{topic} {' and '.join(found) or 'never'}" for topic, found in seen.items()
        )
        asked = self._published.get(record)
        query_id = asked.query_id if asked else "unknown"
        told = ""
        if record in self._answers:
            answer = msgspec.structs.replace(self._answers[record][0], retrieved=(), citations=())
            told = f"; its answer: {msgspec.json.encode(answer).decode()[:ANSWER_CHARS_MAX]}"
        return f"{what}: {query_id} ({record}), last seen in {last}: {places}{told}"
