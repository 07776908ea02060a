"""Matches answers to the published records that they answer, and pieces to one text. Pure.

The id alone is not enough: an id may be published twice, and a reader may see older answers again.
Each answer names its input record (`source`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NewType

from schemas.answer import Answer, PartialAnswer

Ticket = NewType("Ticket", int)

EARLY_MAX = 16
"""Most answers kept for one waiter whose record is not acknowledged yet."""

Place = tuple[int, int]
"""Partition and offset of the published record."""


@dataclass(kw_only=True)
class _Waiter:
    query_id: str
    place: Place | None = None
    is_placed: bool = False
    early: list[Answer] = field(default_factory=list)


class ExpectedAnswers:
    """The answers that are waited for. Not thread-safe: the caller locks."""

    def __init__(self) -> None:
        self._waiters: dict[Ticket, _Waiter] = {}
        self._by_id: dict[str, list[Ticket]] = {}
        self._last = 0

    def __len__(self) -> int:
        """Returns how many answers are waited for."""
        return len(self._waiters)

    def expect(self, query_id: str) -> Ticket:
        """Begins to wait, before the question is published. `forget` ends it."""
        self._last += 1
        ticket = Ticket(self._last)
        self._waiters[ticket] = _Waiter(query_id=query_id)
        self._by_id.setdefault(query_id, []).append(ticket)
        return ticket

    def expects(self, query_id: Hashable) -> bool:
        """Returns whether an answer to this id is waited for."""
        return query_id in self._by_id

    def tickets(self, query_id: str) -> tuple[Ticket, ...]:
        """Returns the waiters for this id, in the order of `expect`."""
        return tuple(self._by_id.get(query_id, ()))

    def placed(self, ticket: Ticket, place: Place | None) -> Answer | None:
        """Notes the place of the question (None: unknown); returns its answer if it is here."""
        waiter = self._waiters.get(ticket)
        if waiter is None:
            return None
        waiter.place, waiter.is_placed = place, True
        mine = next((answer for answer in waiter.early if _answers(answer, waiter)), None)
        waiter.early.clear()
        return mine

    def answered(self, answer: Answer) -> tuple[Ticket, ...]:
        """Takes an answer; returns the waiters whose record it answers."""
        mine = []
        for ticket in self._by_id.get(answer.query_id, ()):
            waiter = self._waiters[ticket]
            if answer.source is None or (waiter.is_placed and _answers(answer, waiter)):
                mine.append(ticket)
            elif not waiter.is_placed:
                waiter.early = [*waiter.early, answer][-EARLY_MAX:]
        return tuple(mine)

    def forget(self, ticket: Ticket) -> None:
        """Ends the wait, answered or not. Unknown tickets are ignored."""
        waiter = self._waiters.pop(ticket, None)
        if waiter is not None:
            tickets = self._by_id[waiter.query_id]
            tickets.remove(ticket)
            if not tickets:
                del self._by_id[waiter.query_id]

    def check_integrity(self) -> None:
        """Asserts that both indexes have the same waiters, within bounds."""
        listed = [
            (query_id, ticket) for query_id, tickets in self._by_id.items() for ticket in tickets
        ]
        assert sorted(ticket for _, ticket in listed) == sorted(self._waiters)
        assert all(self._waiters[ticket].query_id == query_id for query_id, ticket in listed)
        assert all(len(waiter.early) <= EARLY_MAX for waiter in self._waiters.values())


def _answers(answer: Answer, waiter: _Waiter) -> bool:
    if waiter.place is None or answer.source is None:
        return True
    return (answer.source.partition, answer.source.offset) == waiter.place


class PartialText:
    """The text so far, of pieces that may be repeated, late or lost. Steps are no text.

    A new generation discards the one before.
    """

    def __init__(self) -> None:
        self.text = ""
        self.generation_id: str | None = None
        self._discarded: set[str] = set()
        self._seq = -1
        self._step_seq = -1

    def add(self, piece: PartialAnswer) -> bool:
        """Takes a piece; returns False if it is repeated, late or of a discarded generation."""
        if piece.step is not None:
            is_new, self._step_seq = piece.seq > self._step_seq, max(piece.seq, self._step_seq)
            return is_new
        if piece.generation_id in self._discarded:
            return False
        if piece.generation_id != self.generation_id:
            if self.generation_id is not None:
                self._discarded.add(self.generation_id)
            self.generation_id, self.text, self._seq = piece.generation_id, "", -1
        if piece.seq <= self._seq:
            return False
        self._seq = piece.seq
        self.text += piece.text
        return True
