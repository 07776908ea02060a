"""The state machine that decides which queries are generated, and which get an answer that exists.

Queries ask for the same if they have one id, or one prompt key. Of these one is generated at a
time, the others wait, and what it gets is the answer of all. So the outcome of an id is as if one
record were processed at a time, in the order of the log, and an id belongs to the question of its
`ok` answer. Of equal prompts the most urgent one is generated: the leader, as urgent as its most
urgent follower. The next one is generated if the first one gets no answer that can be given to it,
is retried or revoked, or if its partition is given away.

All that it knows is read from the log of answers, and from the log of cancels. An answer that was
handed over counts only when the log shows it, because it may still be discarded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from generator.plan.cancels import Cancels
from generator.plan.dedup_actions import (
    DedupAction,
    DedupQuery,
    EndWait,
    Hasten,
    ReplayAnswer,
    is_reusable,
)
from generator.plan.recent import Recent, digest_of
from schemas.answer import Answer
from schemas.cancel import Cancel
from schemas.record import Source

OTHERS_READ_US_MAX = 2_000_000
"""Longest wait of a prompt for the answers of this member's other partitions to be read.

After it, a prompt that has its answer in a partition with many of them is generated again.
"""


State: TypeAlias = Literal["waiting", "following", "fetching", "generating", "handed_over"]
"""`waiting`: for its partition, or for another query of its id. `following`: for a query with its
prompt. `fetching`: the stored answer to its id, or to its prompt, is fetched. `generating`: it is
passed on, and has no answer yet."""
LEADS: tuple[State, ...] = ("generating", "handed_over")
"""The states of the leader of equal prompts."""


class _StoredAnswer(NamedTuple):
    """`digest`: of the question, for an id; of the id, for a prompt."""

    partition: int
    offset: int
    digest: bytes


@dataclass(slots=True)
class DedupEntry:
    """A query, and what it waits for. `record`: its digest; `key`: while its prompt is looked for.

    `urgency`: how soon its answer is wanted, by priority, then deadline; less is sooner. That of a
    leader is raised to that of its followers.
    """

    query: DedupQuery
    record: bytes
    urgency: tuple[int, float]
    state: State = "waiting"
    key: str | None = None


_Group: TypeAlias = dict[int, DedupEntry]
"""The queries that ask for the same, by unit, in the order of arrival."""


class AnswerDedup:
    """See the module. Not thread-safe: the caller locks. Every call costs at most O(queries).

    Remembers `ids_max` ids, prompts, records and cancels, and forgets the oldest first. To read:
    `unread`, the partitions whose answers are not read yet, and how many queries have each state.
    """

    def __init__(self, *, ids_max: int) -> None:
        self.unread: set[int] = set()
        self.states: Counter[State] = Counter()
        self._held_until_us: int | None = None  # prompts wait for answers of other partitions
        self._answered: Recent[bytes, bool] = Recent(ids_max)
        self._of_id: Recent[bytes, _StoredAnswer] = Recent(ids_max)
        self._of_prompt: Recent[bytes, _StoredAnswer] = Recent(ids_max)
        self._prompt_of: Recent[bytes, bytes] = Recent(ids_max)
        self._cancels = Cancels(cancels_max=ids_max)
        self._queries: _Group = {}
        self._same_id: dict[str, _Group] = {}
        self._same_prompt: dict[str, _Group] = {}

    def assigned(self, partitions: Iterable[int], now_us: int) -> None:
        """Partitions were assigned; queries answered there wait until `read`."""
        self.unread.update(partitions)
        self._held_until_us = now_us + OTHERS_READ_US_MAX

    def read(self, partition: int) -> tuple[DedupAction, ...]:
        """The log of this partition was read to its end: decides the queries that waited for it."""
        self.unread.discard(partition)
        return self._decide(tuple(self._same_id))

    def arrived(self, query: DedupQuery) -> tuple[DedupAction, ...]:
        """A query arrived. One that is here already is offered again: its result was discarded."""
        actions = self.revoked((query.unit_id,))
        record = record_digest(query.query_id, query.source)
        urgency = query.priority, math.inf if query.deadline_us is None else query.deadline_us
        entry = self._queries[query.unit_id] = DedupEntry(query, record, urgency)
        self.states["waiting"] += 1
        self._same_id.setdefault(query.query_id, {})[query.unit_id] = entry
        return (*actions, *self._decide((query.query_id,)))

    def handed_over(self, unit_id: int) -> None:
        """The answer of a query is about to be handed over."""
        if (entry := self._queries.get(unit_id)) is not None:
            if entry.state in ("following", "fetching"):
                self._leave(entry)
            self._become(entry, "handed_over")

    def seen(self, answer: Answer, partition: int, offset: int) -> tuple[DedupAction, ...]:
        """The log shows an answer at this place, of this member or another."""
        keys: list[str | None] = []
        if answer.source is not None:
            record = record_digest(answer.query_id, answer.source)
            self._answered.put(record, True)
            for entry in tuple(self._same_id.get(answer.query_id, {}).values()):
                if entry.record == record and entry.state == "handed_over":
                    keys.append(entry.key)
                    self._forget(entry)
        id = digest_of(answer.query_id)
        if answer.status == "ok" and answer.query_digest is not None:
            digest = digest_of(answer.query_digest)
            self._of_id.put(id, _StoredAnswer(partition, offset, digest))
        if answer.prompt_key is not None and is_reusable(answer):
            prompt = digest_of(answer.prompt_key)
            self._of_prompt.put(prompt, _StoredAnswer(partition, offset, id))
            self._prompt_of.put(id, prompt)
            keys.append(answer.prompt_key)
        return self._decide((answer.query_id,), keys)

    def deleted(self, query_id: str) -> None:
        """The log deletes the answers to this id (a record without a value)."""
        id = digest_of(query_id)
        self._of_id.discard(id)
        prompt = self._prompt_of.get(id) or b""
        stored = self._of_prompt.get(prompt)
        if stored is not None and stored.digest == id:
            self._of_prompt.discard(prompt)

    def fetching(self, unit_id: int) -> DedupEntry | None:
        """Returns a query whose stored answer is fetched. Without a `key` it is that of its id."""
        entry = self._queries.get(unit_id)
        return entry if entry is not None and entry.state == "fetching" else None

    def gone(self, unit_id: int, offset: int) -> tuple[DedupAction, ...]:
        """The answer at `offset` cannot be given to this query: decides anew."""
        if (entry := self.fetching(unit_id)) is None:
            return ()
        known = self._of_id if entry.key is None else self._of_prompt
        digest = digest_of(entry.key or entry.query.query_id)
        stored = known.get(digest)
        if stored is not None and stored.offset == offset:
            known.discard(digest)
        self._become(entry, "waiting" if entry.key is None else "following")
        return self._decide((entry.query.query_id,), (entry.key,))

    def expired(self, now_us: int) -> tuple[DedupAction, ...]:
        """Ends late queries that wait for another query or for a stored answer.

        Late queries that wait for the log, or for a copy of their own record, may have an answer
        already, so they wait on.
        """
        actions: list[DedupAction] = []
        if self._held_until_us is not None and (not self.unread or now_us >= self._held_until_us):
            self._held_until_us = None
            actions += self._decide((), tuple(self._same_prompt))
        for entry in self._queries.values():
            query = entry.query
            if query.deadline_us is None or query.deadline_us > now_us:
                continue
            if entry.key is not None and entry.state in ("following", "fetching"):
                self._leave(entry)
                self._become(entry, "generating")
                actions.append(EndWait(unit_id=query.unit_id, what="generate"))
            elif entry.state in ("waiting", "fetching") and query.partition not in self.unread:
                if entry.state == "waiting" and entry.record in self._open(query.query_id):
                    continue
                self._become(entry, "generating")
                actions.append(EndWait(unit_id=query.unit_id, what="own_key"))
        return tuple(actions)

    def cancelled(self, cancel: Cancel, written_ms: int) -> tuple[DedupAction, ...]:
        """The log of cancels shows this one, with its timestamp.

        A query that waits for one of its id is decided later. That one goes on while one is wanted.
        """
        self._cancels.read(cancel, written_ms)
        actions = list[DedupAction]()
        same = self._same_id.get(cancel.query_id, {}).values()
        wanted = {each.query.digest for each in same if not self._is_withdrawn(each.query)}
        for entry in same:
            is_here = entry.key is not None and entry.state in ("following", "fetching")
            ends = is_here or (entry.state == "generating" and entry.query.digest not in wanted)
            if ends and self._is_withdrawn(entry.query):
                if is_here:
                    self._leave(entry)
                    self._become(entry, "generating")
                actions.append(EndWait(unit_id=entry.query.unit_id, what="cancel"))
        return tuple(actions)

    def revoked(
        self, unit_ids: Collection[int], partitions: Collection[int] = ()
    ) -> tuple[DedupAction, ...]:
        """These queries, and those of these partitions, are here no more: others may go on.

        Also where an answer was handed over: the log that would show it is read no more.
        """
        if partitions:
            self.unread.difference_update(partitions)
            here = self._queries.items()
            unit_ids = {*unit_ids, *(id for id, one in here if one.query.partition in partitions)}
        gone = [self._queries[id] for id in sorted(unit_ids) if id in self._queries]
        keys = [entry.key for entry in gone]
        for entry in gone:
            self._forget(entry)
        return self._decide([entry.query.query_id for entry in gone], keys)

    def _become(self, entry: DedupEntry, state: State) -> None:
        self.states[entry.state] -= 1
        self.states[state] += 1
        entry.state = state

    def _leave(self, entry: DedupEntry) -> None:
        """Takes a query out of those with its prompt."""
        if entry.key is not None:
            _take_out(self._same_prompt, entry.key, entry)
            entry.key = None

    def _forget(self, entry: DedupEntry) -> None:
        self._leave(entry)
        self.states[entry.state] -= 1
        _take_out(self._same_id, entry.query.query_id, entry)
        del self._queries[entry.query.unit_id]

    def _is_withdrawn(self, query: DedupQuery) -> bool:
        return query.digest is not None and self._cancels.is_withdrawn(query.query_id, query.source)

    def _open(self, query_id: str) -> set[bytes]:
        """Returns the records of this id that are decided and have no answer in the log yet."""
        same = self._same_id.get(query_id, {}).values()
        return {entry.record for entry in same if entry.state != "waiting"}

    def _decide(
        self, ids: Iterable[str], keys: Iterable[str | None] = ()
    ) -> tuple[DedupAction, ...]:
        actions: list[DedupAction] = []
        for query_id in dict.fromkeys(ids):
            others = self._open(query_id)
            for entry in tuple(self._same_id.get(query_id, {}).values()):
                is_next = entry.state == "waiting" and entry.query.partition not in self.unread
                if is_next and entry.record not in others:
                    actions += self._decide_id(entry, others)
        for key in dict.fromkeys(keys):
            if key is not None:
                actions += self._decide_prompt(key)
        return tuple(actions)

    def _decide_id(self, entry: DedupEntry, others: set[bytes]) -> Sequence[DedupAction]:
        """Decides a query, unless it waits for one of the `others` with its id."""
        query, unit_id = entry.query, entry.query.unit_id
        if entry.record in self._answered:
            self._forget(entry)
            return (EndWait(unit_id=unit_id, what="skip"),)
        stored = self._of_id.get(digest_of(query.query_id))
        if stored is None and others:
            return ()
        others.add(entry.record)
        self._become(entry, "generating")
        if stored is None:
            return self._decide_new(entry)
        if query.digest is None or stored.digest != digest_of(query.digest):
            return (EndWait(unit_id=unit_id, what="own_key"),)
        return (self._fetch(entry, stored),)

    def _decide_new(self, entry: DedupEntry) -> Sequence[DedupAction]:
        """Decides a query whose id has no answer."""
        query = entry.query
        if self._is_withdrawn(query):
            return (EndWait(unit_id=query.unit_id, what="cancel"),)
        if query.prompt_key is None:
            return (EndWait(unit_id=query.unit_id, what="generate"),)
        entry.key = query.prompt_key
        self._same_prompt.setdefault(entry.key, {})[query.unit_id] = entry
        self._become(entry, "following")
        return self._decide_prompt(entry.key)

    def _decide_prompt(self, key: str) -> Sequence[DedupAction]:
        same = self._same_prompt.get(key, {}).values()
        following = [entry for entry in same if entry.state == "following"]
        if not following or self._held_until_us is not None:
            return ()
        if (stored := self._of_prompt.get(digest_of(key))) is not None:
            return [self._fetch(entry, stored) for entry in following]
        first = min(following, key=lambda entry: entry.urgency)  # the earliest, if equal
        query, leaders = first.query, [entry for entry in same if entry.state in LEADS]
        if not leaders:
            self._become(first, "generating")
            return (EndWait(unit_id=query.unit_id, what="generate"),)
        (leader,) = leaders
        if first.urgency >= leader.urgency:
            return ()
        leader.urgency, unit_id = first.urgency, leader.query.unit_id
        return (Hasten(unit_id=unit_id, priority=query.priority, deadline_us=query.deadline_us),)

    def _fetch(self, entry: DedupEntry, stored: _StoredAnswer) -> ReplayAnswer:
        self._become(entry, "fetching")
        unit_id, (partition, offset, _) = entry.query.unit_id, stored
        return ReplayAnswer(unit_id=unit_id, partition=partition, offset=offset)

    def check_integrity(self) -> None:
        """Asserts what must be true between two calls."""
        entries = self._queries.values()
        assert +self.states == Counter(entry.state for entry in entries), "states are counted"
        ids = [(entry.query.query_id, entry.query.unit_id) for entry in entries]
        keys = [(entry.key, entry.query.unit_id) for entry in entries if entry.key is not None]
        for groups, known in ((self._same_id, ids), (self._same_prompt, keys)):
            assert all(groups.values()), "a group without queries is forgotten"
            assert sorted(known) == sorted((key, id) for key in groups for id in groups[key])
        for group in self._same_prompt.values():
            states = Counter(entry.state for entry in group.values())
            leaders = sum(states[state] for state in LEADS)
            assert leaders <= 1, "one leader a prompt"
            waits = states["following"] > 0
            assert leaders or not waits or self._held_until_us is not None, "it waits for none"


def _take_out(groups: dict[str, _Group], key: str, entry: DedupEntry) -> None:
    del groups[key][entry.query.unit_id]
    if not groups[key]:
        del groups[key]


def record_digest(query_id: str, source: Source) -> bytes:
    """Returns the digest of a published record."""
    return digest_of(f"{source.record}/{query_id}")
