"""Which lines of a batch are open, and which one is sent next. Pure.

What is known of a line is the status of its newest answer and the round of that answer (ADR 0030).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from schemas.answer import Status
from schemas.batch import Round

STATUSES: tuple[Status, ...] = get_args(Status)
OPEN, LEFT_OUT = 0, 255
ROUNDS_MAX = 250


class BatchPlan:
    """The lines from 1 to `lines`. To read: the lines `in_flight`, and `open` ones, those included.

    Every call costs O(1), but `ask_again`. `sample`: the lines that are sent, the last one first;
    None: all, in their order.
    """

    def __init__(self, lines: int, in_flight_max: int, left_out: Iterable[int] = ()) -> None:
        """`left_out`: lines without a question, or with one that cannot be asked."""
        self.counts: Counter[Status] = Counter()
        self.rounds: list[Round] = []
        self.in_flight: set[int] = set()
        self.sample: list[int] | None = None
        self.open = lines
        self._in_flight_max = in_flight_max
        self._statuses = bytearray([LEFT_OUT]) + bytearray(lines)
        self._rounds = bytearray(lines + 1)
        self._of_file = bytearray(lines + 1)  # whether only the output file has shown the answer
        self._superseded = set[tuple[int, int]]()  # answers that the file has, before a retry
        self._cursor = 1
        for line in left_out:
            self._statuses[line] = LEFT_OUT
            self.open -= 1

    def is_open(self, line: int) -> bool:
        """Returns whether a line lacks an answer of the last round that it belongs to."""
        code = self._statuses[line]
        if code in (OPEN, LEFT_OUT):
            return code == OPEN
        status, later = STATUSES[code - 1], self.rounds[self._rounds[line] :]
        return any(status in each.statuses for each in later)

    def ask_again(self, round: Round) -> None:
        """Lines with these statuses are open again."""
        self.rounds.append(round)
        self.open = sum(map(self.is_open, range(len(self._statuses))))
        self._cursor = 1

    def round_of(self, partition: int, offset: int) -> int:
        """Returns the round of an answer, by its place in `rag.answers.v1`."""
        ends = (each.ends[partition : partition + 1] for each in self.rounds)
        return sum(not end or offset >= end[0] for end in ends)

    def was_written(self, line: int, status: Status, round: int) -> None:
        """The output file has this answer, which the log may show again."""
        if self._of_file[line]:
            self._superseded.add((line, self._rounds[line]))
        self.answered(line, status, round)
        self._of_file[line] = True

    def answered(self, line: int, status: Status, round: int) -> tuple[bool, bool]:
        """Takes an answer. Returns whether it is news, and whether it counts.

        It counts if it is the first one of its round. It is no news if the output file has it.
        """
        code = self._statuses[line] if line < len(self._statuses) else LEFT_OUT
        if code == LEFT_OUT:
            return False, False
        if (line, round) in self._superseded:
            self._superseded.discard((line, round))
            return False, False
        if self._of_file[line] and (round, status) == (self._rounds[line], STATUSES[code - 1]):
            self._of_file[line] = False
            return False, False
        if code != OPEN and round <= self._rounds[line]:
            return True, False
        self.open -= self.is_open(line)
        self.counts[status] += 1
        if code != OPEN:
            self.counts[STATUSES[code - 1]] -= 1
        self._statuses[line] = STATUSES.index(status) + 1
        self._rounds[line] = round
        self.open += self.is_open(line)
        self.in_flight.discard(line)
        if self.is_open(line):  # of a round before a retry that was read first
            self._cursor = min(self._cursor, line)
        return True, True

    def find_next(self) -> int | None:
        """Returns the next line to send; None: there is none, or enough are in flight."""
        if len(self.in_flight) >= self._in_flight_max:
            return None
        if self.sample is not None:
            while self.sample and not self._may_be_sent(self.sample[-1]):
                self.sample.pop()
            return self.sample[-1] if self.sample else None
        while self._cursor < len(self._statuses) and not self._may_be_sent(self._cursor):
            self._cursor += 1
        return self._cursor if self._cursor < len(self._statuses) else None

    def _may_be_sent(self, line: int) -> bool:
        return self.is_open(line) and line not in self.in_flight

    def sent(self, line: int) -> None:
        """A line is in flight, until it is answered or `not_sent`."""
        self.in_flight.add(line)

    def not_sent(self, line: int) -> None:
        """The brokers did not take a line."""
        self.in_flight.discard(line)
        self._cursor = min(self._cursor, line)

    def span(self) -> tuple[int, int]:
        """Returns the first line that may be in flight, and the line after the last one."""
        first = min(self.in_flight, default=self._cursor)
        return first, max(self._cursor, *(line + 1 for line in self.in_flight), first)

    def check_integrity(self) -> None:
        """Asserts what must be true between two calls."""
        lines = range(1, len(self._statuses))
        assert self.open == sum(map(self.is_open, lines)), "open lines are counted"
        assert all(map(self.is_open, self.in_flight)), "answered lines are not in flight"
        assert len(self.in_flight) <= self._in_flight_max
        assert not any(map(self._may_be_sent, lines[: self._cursor - 1])), "a line is left behind"
