"""The state machine that has one generation for one prompt: equal prompts get one answer.

Of the queries with one prompt key the most urgent one that waits is generated: the leader. The
others, its followers, wait until the log of answers shows its answer, and get that answer again.
The most urgent follower is the next leader if the log shows that the leader has no answer that can
be given again, or if the leader is retried or revoked, or its partition is given away. A leader is
as urgent as its most urgent follower.

An answer that was handed over counts only when the log shows it, because it may still be discarded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from generator.plan.answer_dedup import DedupQuery, ReplayAnswer, digest_of, record_digest
from generator.plan.recent import Recent
from schemas.answer import Answer


@dataclass(frozen=True, kw_only=True, slots=True)
class PassOn:
    """Generate this query. If it is late, the stage within answers `expired`."""

    unit_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Hasten:
    """Generate this leader as soon as if it had this priority and deadline: a follower has them."""

    unit_id: int
    priority: int
    deadline_us: int | None


ReuseAction: TypeAlias = PassOn | ReplayAnswer | Hasten
Urgency: TypeAlias = tuple[int, float]
"""How soon an answer is wanted: by priority, then deadline (none is last). Less is sooner."""


class _PromptAnswer(NamedTuple):
    partition: int
    offset: int
    query_id: bytes


@dataclass(slots=True)
class _Asked:
    query: DedupQuery
    key: str
    state: Literal["waiting", "generating", "handed_over", "fetching"] = "waiting"


@dataclass(slots=True)
class _SamePrompt:
    """The queries of one key. `others`: they wait, or their answer is fetched, by arrival.

    `urgency`: that of the leader, raised to that of its followers.
    """

    leader: int | None = None
    urgency: Urgency | None = None
    others: dict[int, _Asked] = field(default_factory=dict)


def is_reusable(answer: Answer) -> bool:
    """Returns whether an answer is given again to equal prompts: the model made it, without error.

    That includes text that was cut off at `max_tokens`, because the model would write it again. An
    answer that was given again does not count, so no answer outlives the horizon of the log.
    """
    return (
        answer.prompt_key is not None
        and not answer.replayed
        and answer.status in ("ok", "partial")
        and answer.error is None
    )


class PromptReuse:
    """See the module. Not thread-safe: the caller locks. Every call costs at most O(queries).

    Remembers `keys_max` keys with an answer, and forgets the oldest first.
    """

    def __init__(self, *, keys_max: int) -> None:
        self._stored: Recent[bytes, _PromptAnswer] = Recent(keys_max)
        self._key_of_id: Recent[bytes, bytes] = Recent(keys_max)
        self._queries: dict[int, _Asked] = {}
        self._by_key: dict[str, _SamePrompt] = {}
        self._leader_of: dict[bytes, int] = {}  # by record
        self._is_held = False

    @property
    def followers(self) -> int:
        """Queries that wait for the answer to another query."""
        return sum(len(same.others) for same in self._by_key.values() if same.leader is not None)

    def waits(self, unit_id: int) -> bool:
        """Returns whether a query waits for the answer to its prompt, from a query or the log."""
        entry = self._queries.get(unit_id)
        return entry is not None and entry.state in ("waiting", "fetching")

    def fetched_key(self, unit_id: int) -> str | None:
        """Returns the key of a query whose stored answer is fetched; None: it is not."""
        entry = self._queries.get(unit_id)
        return entry.key if entry is not None and entry.state == "fetching" else None

    def hold(self) -> None:
        """Answers are read that may be to prompts of queries to come: they wait until `release`."""
        self._is_held = True

    def release(self) -> tuple[ReuseAction, ...]:
        """The answers are read, or take too long to read: decides the queries that waited."""
        if not self._is_held:
            return ()
        self._is_held = False
        return self._advance(tuple(self._by_key))

    def arrived(self, query: DedupQuery, key: str) -> tuple[ReuseAction, ...]:
        """A query without an answer to its id arrived. `key`: of its prompt, which may have one."""
        assert query.unit_id not in self._queries, f"query {query.unit_id} came twice"
        entry = self._queries[query.unit_id] = _Asked(query, key)
        self._by_key.setdefault(key, _SamePrompt()).others[query.unit_id] = entry
        return self._advance((key,))

    def ended(self, unit_id: int, *, has_answer: bool) -> tuple[ReuseAction, ...]:
        """The result of a query is about to be handed over. Without an answer it is retried."""
        entry = self._queries.get(unit_id)
        if entry is None:
            return ()
        if has_answer and entry.state in ("generating", "handed_over"):
            entry.state = "handed_over"
            return ()
        return self.revoked((unit_id,))

    def seen(self, answer: Answer, partition: int, offset: int) -> tuple[ReuseAction, ...]:
        """The log shows an answer at this place, of this member or another."""
        keys: list[str] = []
        if answer.prompt_key is not None and is_reusable(answer):
            key, query_id = digest_of(answer.prompt_key), digest_of(answer.query_id)
            self._stored.put(key, _PromptAnswer(partition, offset, query_id))
            self._key_of_id.put(query_id, key)
            keys.append(answer.prompt_key)
        if answer.source is not None:
            leader = self._leader_of.get(record_digest(answer.query_id, answer.source))
            if leader is not None and self._queries[leader].state == "handed_over":
                keys.append(self._queries[leader].key)
                self._forget(leader)
        return self._advance(keys)

    def deleted(self, query_id: str) -> None:
        """The log deletes the answers to this id (a record without a value)."""
        id = digest_of(query_id)
        key = self._key_of_id.get(id)
        stored = None if key is None else self._stored.get(key)
        if key is not None and stored is not None and stored.query_id == id:
            self._stored.discard(key)

    def gone(self, unit_id: int, offset: int) -> tuple[ReuseAction, ...]:
        """The answer at `offset` cannot be given again: decides anew."""
        entry = self._queries.get(unit_id)
        if entry is None or entry.state != "fetching":
            return ()
        key = digest_of(entry.key)
        stored = self._stored.get(key)
        if stored is not None and stored.offset == offset:
            self._stored.discard(key)
        entry.state = "waiting"
        return self._advance((entry.key,))

    def expired(self, now_us: int) -> tuple[ReuseAction, ...]:
        """Passes on late queries that wait for a stored answer, or for that of another query."""
        late = [
            entry.query.unit_id
            for entry in self._queries.values()
            if entry.state in ("waiting", "fetching")
            and entry.query.deadline_us is not None
            and entry.query.deadline_us <= now_us
        ]
        for unit_id in late:
            self._forget(unit_id)
        return tuple(PassOn(unit_id=unit_id) for unit_id in late)

    def revoked(self, unit_ids: Iterable[int]) -> tuple[ReuseAction, ...]:
        """These queries are here no more: others may lead."""
        gone = [unit_id for unit_id in sorted(unit_ids) if unit_id in self._queries]
        keys = dict.fromkeys(self._queries[unit_id].key for unit_id in gone)
        for unit_id in gone:
            self._forget(unit_id)
        return self._advance(keys)

    def given_away(self, partitions: Collection[int]) -> tuple[ReuseAction, ...]:
        """Partitions were given to another member: others lead where its queries did.

        Also where an answer was handed over: the log that would show it is read no more.
        """
        queries = self._queries.items()
        return self.revoked([id for id, each in queries if each.query.partition in partitions])

    def _forget(self, unit_id: int) -> None:
        entry = self._queries.pop(unit_id)
        query, same = entry.query, self._by_key[entry.key]
        same.others.pop(unit_id, None)
        if same.leader == unit_id:
            same.leader = same.urgency = None
            del self._leader_of[record_digest(query.query_id, query.source)]
        if same.leader is None and not same.others:
            del self._by_key[entry.key]

    def _advance(self, keys: Iterable[str]) -> tuple[ReuseAction, ...]:
        if self._is_held:
            return ()
        return tuple(
            action
            for key in keys
            if (same := self._by_key.get(key)) is not None
            for action in self._decide(key, same)
        )

    def _decide(self, key: str, same: _SamePrompt) -> list[ReuseAction]:
        waiting = [entry for entry in same.others.values() if entry.state == "waiting"]
        if not waiting:
            return []
        stored = self._stored.get(digest_of(key))
        if stored is not None:
            for entry in waiting:
                entry.state = "fetching"
            return [
                ReplayAnswer(
                    unit_id=entry.query.unit_id, partition=stored.partition, offset=stored.offset
                )
                for entry in waiting
            ]
        first = min(waiting, key=lambda entry: _urgency(entry.query))  # the earliest, if equal
        query, urgency = first.query, _urgency(first.query)
        if same.leader is None:
            same.leader, same.urgency = query.unit_id, urgency
            del same.others[query.unit_id]
            first.state = "generating"
            self._leader_of[record_digest(query.query_id, query.source)] = query.unit_id
            return [PassOn(unit_id=query.unit_id)]
        assert same.urgency is not None, "a leader has an urgency"
        if urgency >= same.urgency:
            return []
        same.urgency = urgency
        return [Hasten(unit_id=same.leader, priority=query.priority, deadline_us=query.deadline_us)]

    def check_integrity(self) -> None:
        """Asserts what must be true between two calls."""
        leaders = [same.leader for same in self._by_key.values() if same.leader is not None]
        others = [id for same in self._by_key.values() for id in same.others]
        assert sorted(leaders + others) == sorted(self._queries), "each query is listed once"
        assert sorted(self._leader_of.values()) == sorted(leaders), "leaders are found by record"
        for same in self._by_key.values():
            assert same.leader is not None or same.others, "a key without queries is forgotten"
            states = [entry.state for entry in same.others.values()]
            assert {"generating", "handed_over"}.isdisjoint(states), "one leader a key"
            waits = "waiting" in states
            assert self._is_held or same.leader is not None or not waits, "no query waits for none"


def _urgency(query: DedupQuery) -> Urgency:
    return query.priority, math.inf if query.deadline_us is None else query.deadline_us
