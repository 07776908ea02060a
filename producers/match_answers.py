"""Which answer is mine? Answers are matched to the record that was published, not to its id alone.

An id may be published twice, and a reader may see older answers again; each answer names its input
record (`source`), so a waiter takes only the answer to its own. State machines, without Kafka,
threads or clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NewType

from schemas.answer import Answer, PartialAnswer

Ticket = NewType("Ticket", int)

HELD_MAX = 16
"""Answers kept for one waiter whose record is not acknowledged yet; an id is not published this
often in a millisecond.
"""

Place = tuple[int, int]
"""Partition and offset of the published record."""


@dataclass(kw_only=True)
class _Waiter:
    query_id: str
    place: Place | None = None
    is_placed: bool = False
    held: list[Answer] = field(default_factory=list)


class ExpectedAnswers:
    """The answers that are waited for. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._waiters: dict[Ticket, _Waiter] = {}
        self._by_id: dict[str, list[Ticket]] = {}
        self._last = 0

    def __len__(self) -> int:
        """Returns how many answers are waited for."""
        return len(self._waiters)

    def expect(self, query_id: str) -> Ticket:
        """Begins to wait, before the question is published. Ends with `forget`."""
        self._last += 1
        ticket = Ticket(self._last)
        self._waiters[ticket] = _Waiter(query_id=query_id)
        self._by_id.setdefault(query_id, []).append(ticket)
        return ticket

    def wants(self, query_id: Hashable) -> bool:
        """Returns whether anyone waits for an answer to this id."""
        return query_id in self._by_id

    def tickets(self, query_id: str) -> tuple[Ticket, ...]:
        """Returns who waits for an answer to this id, in the order of asking."""
        return tuple(self._by_id.get(query_id, ()))

    def placed(self, ticket: Ticket, place: Place | None) -> Answer | None:
        """Says where the question was written (None: the broker did not tell); returns its answer
        if that is here already.
        """
        waiter = self._waiters.get(ticket)
        if waiter is None:
            return None
        waiter.place, waiter.is_placed = place, True
        mine = next((answer for answer in waiter.held if _answers(answer, waiter)), None)
        waiter.held.clear()
        return mine

    def answered(self, answer: Answer) -> tuple[Ticket, ...]:
        """Takes an answer that was read; returns the waiters whose own it is."""
        mine = []
        for ticket in self._by_id.get(answer.query_id, ()):
            waiter = self._waiters[ticket]
            if answer.source is None or (waiter.is_placed and _answers(answer, waiter)):
                mine.append(ticket)
            elif not waiter.is_placed:
                waiter.held = [*waiter.held, answer][-HELD_MAX:]
        return tuple(mine)

    def forget(self, ticket: Ticket) -> None:
        """Ends the wait, answered or not. Unknown tickets are no error."""
        waiter = self._waiters.pop(ticket, None)
        if waiter is not None:
            tickets = self._by_id[waiter.query_id]
            tickets.remove(ticket)
            if not tickets:
                del self._by_id[waiter.query_id]

    def check_integrity(self) -> None:
        """Asserts that both indexes hold the same waiters, and bounds are kept."""
        listed = [
            (query_id, ticket) for query_id, tickets in self._by_id.items() for ticket in tickets
        ]
        assert sorted(ticket for _, ticket in listed) == sorted(self._waiters)
        assert all(self._waiters[ticket].query_id == query_id for query_id, ticket in listed)
        assert all(len(waiter.held) <= HELD_MAX for waiter in self._waiters.values())


def _answers(answer: Answer, waiter: _Waiter) -> bool:
    if waiter.place is None or answer.source is None:
        return True
    return (answer.source.partition, answer.source.offset) == waiter.place


class PartialText:
    """The text so far, out of pieces that may be repeated, late or lost: a new generation discards
    the one before.
    """

    def __init__(self) -> None:
        self.text = ""
        self.generation_id: str | None = None
        self._left: set[str] = set()
        self._seq = -1

    def add(self, piece: PartialAnswer) -> bool:
        """Takes a piece; returns whether it is news (False: repeated, late, or of a generation that
        was left).
        """
        if piece.generation_id in self._left:
            return False
        if piece.generation_id != self.generation_id:
            if self.generation_id is not None:
                self._left.add(self.generation_id)
            self.generation_id, self.text, self._seq = piece.generation_id, "", -1
        if piece.seq <= self._seq:
            return False
        self._seq = piece.seq
        self.text += piece.text
        return True
