"""The state machine that decides which queries are generated, and which have an answer already.

All it knows is read from the log of answers: which records were answered, and which ids have an
`ok` answer, to which question, at which offset. Records with the same id are generated one after
another, in the order of the log, until one has an `ok` answer; the others then get that answer
again. So the outcome is as if one record were processed at a time. An id belongs to the question of
its `ok` answer.

An answer that was handed over counts only when the log shows it, because it may still be discarded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from generator.plan.recent import Recent
from schemas.answer import Answer
from schemas.record import Source

KEY_BYTES = 16
"""The size of the hashes that ids, sources and digests are kept as."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupQuery:
    """A record to be answered. `source`: as published; `partition`: where its answer is written.

    `digest`: of the question; None: an earlier service has the answer, which is not `ok`.
    """

    unit_id: int
    query_id: str
    source: Source
    digest: str | None
    partition: int
    priority: int = 0
    deadline_us: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateAnswer:
    """Generate this query, or write the answer of an earlier service: it has no answer."""

    unit_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayAnswer:
    """Answer this query with the stored answer at this offset: to its id, or to its prompt."""

    unit_id: int
    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerBeside:
    """Answer this query, but not `ok`, and without superseding the `ok` answer that its id has.

    Its id belongs to another question; or it is late, and another record may get that answer; or an
    earlier service has its answer.
    """

    unit_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipAnswered:
    """Acknowledge this query without an output: its record was answered before."""

    unit_id: int


DedupAction: TypeAlias = GenerateAnswer | ReplayAnswer | AnswerBeside | SkipAnswered


class _StoredAnswer(NamedTuple):
    partition: int
    offset: int
    digest: bytes


@dataclass(slots=True)
class _Entry:
    query: DedupQuery
    state: Literal["waiting", "generating", "replaying", "handed_over"] = "waiting"


@dataclass(slots=True)
class _SameIdQueries:
    """The queries of one id: `waiting` in order of arrival, `open` (the others) by source."""

    waiting: dict[int, DedupQuery] = field(default_factory=dict)
    open: dict[bytes, int] = field(default_factory=dict)


class AnswerDedup:
    """See the module. Not thread-safe: the caller locks. Every call costs at most O(queries).

    Remembers `ids_max` ids with an `ok` answer and as many answered records, and forgets the oldest
    first.
    """

    def __init__(self, *, ids_max: int) -> None:
        self._answered: Recent[bytes, bool] = Recent(ids_max)
        self._ok: Recent[bytes, _StoredAnswer] = Recent(ids_max)
        self._unread: set[int] = set()
        self._queries: dict[int, _Entry] = {}
        self._by_id: dict[str, _SameIdQueries] = {}
        self._handed_over = 0

    @property
    def unread(self) -> tuple[int, ...]:
        """The partitions whose answers are not read yet, ascending."""
        return tuple(sorted(self._unread))

    @property
    def handed_over(self) -> int:
        """Answers handed over that the log does not show yet."""
        return self._handed_over

    def unanswered(self, query_id: str) -> tuple[DedupQuery, ...]:
        """Returns the queries of this id whose answer was not handed over, by unit."""
        same_id = self._by_id.get(query_id)
        ids = () if same_id is None else (*same_id.waiting, *same_id.open.values())
        entries = (self._queries[unit_id] for unit_id in sorted(ids))
        return tuple(entry.query for entry in entries if entry.state != "handed_over")

    def assigned(self, partitions: Iterable[int]) -> None:
        """Partitions were assigned; queries answered there wait until `read`."""
        self._unread.update(partitions)

    def given_away(self, partitions: Iterable[int]) -> None:
        """Partitions were given to another member; nothing waits for them any more.

        What was handed over for them is forgotten: their log is read no more, and would show it.
        """
        gone = frozenset(partitions)
        self._unread -= gone
        for entry in tuple(self._queries.values()):
            if entry.query.partition in gone and entry.state == "handed_over":
                self._forget(entry)

    def read(self, partition: int) -> tuple[DedupAction, ...]:
        """The log of this partition was read to its end: decides the queries that waited for it."""
        self._unread.discard(partition)
        return self._advance(query_id for query_id in tuple(self._by_id))

    def arrived(self, query: DedupQuery) -> tuple[DedupAction, ...]:
        """A query arrived. One that is here already is offered again: its result was discarded."""
        if (before := self._queries.get(query.unit_id)) is not None:
            self._forget(before)
        self._queries[query.unit_id] = _Entry(query)
        self._by_id.setdefault(query.query_id, _SameIdQueries()).waiting[query.unit_id] = query
        return self._advance((query.query_id,))

    def ended(self, unit_id: int, *, has_answer: bool) -> tuple[DedupAction, ...]:
        """The result of a query is about to be handed over. Without an answer it is retried."""
        entry = self._queries.get(unit_id)
        if entry is None:
            return ()
        if has_answer:
            self._handed_over += entry.state != "handed_over"
            entry.state = "handed_over"
            return ()
        self._forget(entry)
        return self._advance((entry.query.query_id,))

    def seen(self, answer: Answer, partition: int, offset: int) -> tuple[DedupAction, ...]:
        """The log shows an answer at this place, of this member or another."""
        if answer.source is not None:
            key = record_digest(answer.query_id, answer.source)
            self._answered.put(key, True)
            same_id = self._by_id.get(answer.query_id)
            entry = self._queries.get(same_id.open.get(key, -1)) if same_id is not None else None
            if entry is not None and entry.state == "handed_over":
                self._forget(entry)
        if answer.status == "ok" and answer.query_digest is not None:
            stored = _StoredAnswer(partition, offset, digest_of(answer.query_digest))
            self._ok.put(digest_of(answer.query_id), stored)
        return self._advance((answer.query_id,))

    def deleted(self, query_id: str) -> None:
        """The log deletes the answers to this id (a record without a value)."""
        self._ok.discard(digest_of(query_id))

    def gone(self, unit_id: int, offset: int) -> tuple[DedupAction, ...]:
        """The answer at `offset`, to be replayed, is no longer in the log: decides anew."""
        entry = self._queries.get(unit_id)
        if entry is None or entry.state != "replaying":
            return ()
        query, same_id = entry.query, self._by_id[entry.query.query_id]
        key, stored = digest_of(query.query_id), self._ok.get(digest_of(query.query_id))
        if stored is not None and stored.offset == offset:
            self._ok.discard(key)
        del same_id.open[record_digest(query.query_id, query.source)]
        entry.state = "waiting"
        same_id.waiting = {unit_id: query, **same_id.waiting}
        return self._advance((query.query_id,))

    def expired(self, now_us: int) -> tuple[DedupAction, ...]:
        """Ends late queries that wait for another query or for a stored answer.

        Late queries that wait for the log, or for a copy of their own record, may have an answer
        already, so they wait on.
        """
        actions: list[DedupAction] = []
        for entry in self._queries.values():
            query, same_id = entry.query, self._by_id[entry.query.query_id]
            if (
                query.deadline_us is None
                or query.deadline_us > now_us
                or query.partition in self._unread
            ):
                continue
            key = record_digest(query.query_id, query.source)
            if entry.state == "replaying" or (entry.state == "waiting" and key not in same_id.open):
                same_id.waiting.pop(query.unit_id, None)
                same_id.open[key] = query.unit_id
                entry.state = "generating"
                actions.append(AnswerBeside(unit_id=query.unit_id))
        return tuple(actions)

    def revoked(self, unit_ids: Iterable[int]) -> tuple[DedupAction, ...]:
        """The partitions of these queries were assigned to another member."""
        gone = [self._queries[unit_id] for unit_id in sorted(unit_ids) if unit_id in self._queries]
        for entry in gone:
            self._forget(entry)
        return self._advance(dict.fromkeys(entry.query.query_id for entry in gone))

    def _forget(self, entry: _Entry) -> None:
        query = entry.query
        del self._queries[query.unit_id]
        self._handed_over -= entry.state == "handed_over"
        same_id = self._by_id[query.query_id]
        same_id.waiting.pop(query.unit_id, None)
        key = record_digest(query.query_id, query.source)
        if same_id.open.get(key) == query.unit_id:
            del same_id.open[key]
        if not same_id.open and not same_id.waiting:
            del self._by_id[query.query_id]

    def _advance(self, query_ids: Iterable[str]) -> tuple[DedupAction, ...]:
        actions: list[DedupAction] = []
        for query_id in query_ids:
            same_id = self._by_id.get(query_id)
            for query in tuple(same_id.waiting.values()) if same_id is not None else ():
                assert same_id is not None
                if (action := self._decide(query, same_id)) is not None:
                    actions.append(action)
        return tuple(actions)

    def _decide(self, query: DedupQuery, same_id: _SameIdQueries) -> DedupAction | None:
        """Returns the action for a waiting query; None: it waits on."""
        key = record_digest(query.query_id, query.source)
        if query.partition in self._unread or key in same_id.open:
            return None
        entry = self._queries[query.unit_id]
        if key in self._answered:
            self._forget(entry)
            return SkipAnswered(unit_id=query.unit_id)
        stored = self._ok.get(digest_of(query.query_id))
        if stored is None and same_id.open:
            return None
        del same_id.waiting[query.unit_id]
        same_id.open[key] = query.unit_id
        entry.state = "generating"
        if stored is None:
            return GenerateAnswer(unit_id=query.unit_id)
        if query.digest is None or stored.digest != digest_of(query.digest):
            return AnswerBeside(unit_id=query.unit_id)
        entry.state = "replaying"
        return ReplayAnswer(unit_id=query.unit_id, partition=stored.partition, offset=stored.offset)

    def check_integrity(self) -> None:
        """Asserts what must be true between two calls."""
        listed = sorted(id for same_id in self._by_id.values() for id in same_id.waiting)
        assert listed == sorted(
            id for id, entry in self._queries.items() if entry.state == "waiting"
        ), "waiting queries are listed"
        for same_id in self._by_id.values():
            assert same_id.open or same_id.waiting, "an id without queries is forgotten"
            assert set(same_id.open.values()) <= set(self._queries), "open queries are known"
        states = [entry.state for entry in self._queries.values()]
        assert self._handed_over == states.count("handed_over"), "answers handed over are counted"


def digest_of(text: str) -> bytes:
    """Returns the digest that is kept of an id or a key, `KEY_BYTES` long."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def record_digest(query_id: str, source: Source) -> bytes:
    """Returns the digest of a published record."""
    return digest_of(f"{source.record}/{query_id}")
