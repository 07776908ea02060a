"""Which queries have an answer already? The state machine that decides what becomes of every record
that comes in.

What it knows it has read in the log of answers: which records were answered, and which ids have an
`ok` answer, to which question, at which offset. Records with one id are worked on one after
another, in the order of the log, until one of them has an `ok` answer; from then on all others get
that one again. So the outcome is that of working on one record at a time, however work overlaps. An
id belongs to the question of its `ok` answer; before there is one, to none.

An answer that was handed over counts only when the log shows it: before, it may still be discarded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from generator.plan.recent import Recent
from schemas.answer import Status
from schemas.record import Source

KEY_BYTES = 16
"""Ids, sources and digests are kept as hashes of this size: long ones take no more memory, and two
never meet by chance.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupQuery:
    """A record that wants an answer. `source`: the published record, `digest`: of what it asks,
    `partition`: of its answer.
    """

    unit_id: int
    query_id: str
    source: Source
    digest: str
    partition: int
    deadline_us: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedAnswer:
    """An answer in the log, and its offset."""

    query_id: str
    source: Source | None
    status: Status
    digest: str | None
    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateAnswer:
    """Have this one worked on: there is no answer to give it. What is late is worked on too, and
    ends as `expired`.
    """

    unit_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayAnswer:
    """Give this one the `ok` answer that lies at this offset."""

    unit_id: int
    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RefuseConflict:
    """Answer this one `failed`: its id has an `ok` answer to another question."""

    unit_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipAnswered:
    """Acknowledge this one without an output: its very record was answered, by an earlier life or
    to a copy of it.
    """

    unit_id: int


DedupAction: TypeAlias = GenerateAnswer | ReplayAnswer | RefuseConflict | SkipAnswered


class _StoredAnswer(NamedTuple):
    partition: int
    offset: int
    digest: bytes


@dataclass(slots=True)
class _OpenQuery:
    asked: DedupQuery
    state: Literal["waiting", "generating", "replaying", "handed_over"] = "waiting"


@dataclass(slots=True)
class _SameIdQueries:
    """The records of one id in hand: `waiting` in order of arrival; `open` are the others, by the
    record that was published.
    """

    waiting: dict[int, DedupQuery] = field(default_factory=dict)
    open: dict[bytes, int] = field(default_factory=dict)


class AnswerDedup:
    """See the module. Not thread-safe; its caller holds a lock. Every call costs O(records in hand)
    at most.

    Bounded: `ids_max` ids with an `ok` answer and as many answered records, the oldest forgotten
    first.
    """

    def __init__(self, *, ids_max: int) -> None:
        self._answered: Recent[bytes, bool] = Recent(ids_max)
        self._ok: Recent[bytes, _StoredAnswer] = Recent(ids_max)
        self._unread: set[int] = set()
        self._work: dict[int, _OpenQuery] = {}
        self._lines: dict[str, _SameIdQueries] = {}
        self._handed_over = 0

    @property
    def ids(self) -> int:
        """Entries with an `ok` answer that take memory."""
        return self._ok.entries

    @property
    def unread(self) -> tuple[int, ...]:
        """The partitions whose answers are not read yet."""
        return tuple(sorted(self._unread))

    @property
    def handed_over(self) -> int:
        """Answers handed over that the log does not show yet."""
        return self._handed_over

    def assigned(self, partitions: Iterable[int]) -> None:
        """Records come from now on whose answers lie in these partitions; they wait until
        `read`.
        """
        self._unread.update(partitions)

    def read(self, partition: int) -> tuple[DedupAction, ...]:
        """The log of this partition was read to its end: what waited for that is decided."""
        self._unread.discard(partition)
        return self._advance(query_id for query_id in tuple(self._lines))

    def arrived(self, asked: DedupQuery) -> tuple[DedupAction, ...]:
        """A record came in. One that is in hand already came again because what it came to was
        discarded.
        """
        if (before := self._work.get(asked.unit_id)) is not None:
            self._forget(before)
        self._work[asked.unit_id] = _OpenQuery(asked)
        self._lines.setdefault(asked.query_id, _SameIdQueries()).waiting[asked.unit_id] = asked
        return self._advance((asked.query_id,))

    def ended(self, unit_id: int, *, has_answer: bool) -> tuple[DedupAction, ...]:
        """What a record came to is about to be handed over. Without an answer (it is tried again)
        the next one goes on.
        """
        work = self._work.get(unit_id)
        if work is None:
            return ()
        if has_answer:
            self._handed_over += work.state != "handed_over"
            work.state = "handed_over"
            return ()
        self._forget(work)
        return self._advance((work.asked.query_id,))

    def seen(self, answer: LoggedAnswer) -> tuple[DedupAction, ...]:
        """The log shows an answer, ours or another's."""
        if answer.source is not None:
            key = _source_key(answer.query_id, answer.source)
            self._answered.put(key, True)
            line = self._lines.get(answer.query_id)
            work = self._work.get(line.open.get(key, -1)) if line is not None else None
            if work is not None and work.state == "handed_over":
                self._forget(work)
        if answer.status == "ok" and answer.digest is not None:
            stored = _StoredAnswer(answer.partition, answer.offset, _key(answer.digest))
            self._ok.put(_key(answer.query_id), stored)
        return self._advance((answer.query_id,))

    def deleted(self, query_id: str) -> None:
        """The log says that the answers to this id are deleted (a record without a value): it may
        be asked anew.
        """
        self._ok.discard(_key(query_id))

    def gone(self, unit_id: int, offset: int) -> tuple[DedupAction, ...]:
        """The answer at `offset` that was to be replayed is no longer in the log: its id may be
        asked anew.
        """
        work = self._work.get(unit_id)
        if work is None or work.state != "replaying":
            return ()
        asked, line = work.asked, self._lines[work.asked.query_id]
        key, stored = _key(asked.query_id), self._ok.get(_key(asked.query_id))
        if stored is not None and stored.offset == offset:
            self._ok.discard(key)
        del line.open[_source_key(asked.query_id, asked.source)]
        work.state = "waiting"
        line.waiting = {unit_id: asked, **line.waiting}
        return self._advance((asked.query_id,))

    def expired(self, now_us: int) -> tuple[DedupAction, ...]:
        """Lets go of what waits, for its turn or for a stored answer, and is late.

        Not of what waits for the log to be read, nor of a copy of a record at work: those may have
        their answer already.
        """
        actions = []
        for work in self._work.values():
            asked, line = work.asked, self._lines[work.asked.query_id]
            if (
                asked.deadline_us is None
                or asked.deadline_us > now_us
                or asked.partition in self._unread
            ):
                continue
            key = _source_key(asked.query_id, asked.source)
            if work.state == "replaying" or (work.state == "waiting" and key not in line.open):
                line.waiting.pop(asked.unit_id, None)
                line.open[key] = asked.unit_id
                work.state = "generating"
                actions.append(GenerateAnswer(unit_id=asked.unit_id))
        return tuple(actions)

    def revoked(self, unit_ids: Iterable[int]) -> tuple[DedupAction, ...]:
        """These records are somebody else's now."""
        gone = [self._work[unit_id] for unit_id in sorted(unit_ids) if unit_id in self._work]
        for work in gone:
            self._forget(work)
        return self._advance(dict.fromkeys(work.asked.query_id for work in gone))

    def _forget(self, work: _OpenQuery) -> None:
        asked = work.asked
        del self._work[asked.unit_id]
        self._handed_over -= work.state == "handed_over"
        line = self._lines[asked.query_id]
        line.waiting.pop(asked.unit_id, None)
        key = _source_key(asked.query_id, asked.source)
        if line.open.get(key) == asked.unit_id:
            del line.open[key]
        if not line.open and not line.waiting:
            del self._lines[asked.query_id]

    def _advance(self, query_ids: Iterable[str]) -> tuple[DedupAction, ...]:
        actions: list[DedupAction] = []
        for query_id in query_ids:
            line = self._lines.get(query_id)
            for asked in tuple(line.waiting.values()) if line is not None else ():
                assert line is not None
                if (action := self._decide(asked, line)) is not None:
                    actions.append(action)
        return tuple(actions)

    def _decide(self, asked: DedupQuery, line: _SameIdQueries) -> DedupAction | None:
        """What becomes of a record that waits; None: it waits on."""
        key = _source_key(asked.query_id, asked.source)
        if asked.partition in self._unread or key in line.open:
            return None
        work = self._work[asked.unit_id]
        if key in self._answered:
            self._forget(work)
            return SkipAnswered(unit_id=asked.unit_id)
        stored = self._ok.get(_key(asked.query_id))
        if stored is None and line.open:
            return None
        del line.waiting[asked.unit_id]
        line.open[key] = asked.unit_id
        work.state = "generating"
        if stored is None:
            return GenerateAnswer(unit_id=asked.unit_id)
        if stored.digest != _key(asked.digest):
            return RefuseConflict(unit_id=asked.unit_id)
        work.state = "replaying"
        return ReplayAnswer(unit_id=asked.unit_id, partition=stored.partition, offset=stored.offset)

    def check_integrity(self) -> None:
        """Asserts what must hold between two calls."""
        listed = sorted(id for line in self._lines.values() for id in line.waiting)
        assert listed == sorted(id for id, work in self._work.items() if work.state == "waiting"), (
            "who waits is listed"
        )
        for line in self._lines.values():
            assert line.open or line.waiting, "no line is kept for nobody"
            assert set(line.open.values()) <= set(self._work), "what is open is in hand"
        states = [work.state for work in self._work.values()]
        assert self._handed_over == states.count("handed_over"), "answers handed over are counted"


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def _source_key(query_id: str, source: Source) -> bytes:
    return _key(f"{source.place}/{source.timestamp_ms}/{query_id}")
