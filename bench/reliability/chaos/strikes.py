"""Strikes processes at their planned moments, once each strike counts: with work in flight, and
progress since the last.

Whether a kill falls inside an open transaction is not guessed: the victim is stopped, the
transaction's coordinator is asked for its state, and only then is the victim killed, or let go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import msgspec

from bench.reliability.chaos.keeper import Keeper
from bench.reliability.chaos.plan import OF_BROKERS, Kind, Strike
from carpool.testing.transactions import Transaction

SETTLE_S = 0.01
"""After a stop, what the victim had already sent is served before its transaction is looked at."""

TRIES_MAX = 200
"""How often a victim is stopped in search of an open transaction before the next turn of the
strike.
"""


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """A strike that counted. `transaction`: the victim's when it was struck, as its coordinator
    told; None: it had none.

    `in_flight`: records that it held (of a broker: questions that were not answered). `answers`:
    how many had been read.
    """

    at_s: float
    kind: Kind
    victim: str
    away_s: float
    in_flight: int
    answers: int
    transaction: Transaction | None = None

    @property
    def is_in_transaction(self) -> bool:
        """Whether it was a kill inside an open transaction."""
        is_kill = self.kind in ("kill", "kill in a transaction")
        return is_kill and self.transaction is not None and self.transaction.is_open


class Seen(Protocol):
    """What the strikes need to know of the run."""

    def now_s(self) -> float:
        """Returns the seconds since the run began."""
        ...

    def published(self) -> int:
        """Returns the questions sent so far."""
        ...

    def answered(self) -> int:
        """Returns the questions with a committed answer so far."""
        ...

    def in_flight(self, member: str) -> int:
        """Returns the records that a service's process holds now; 0 when it does not answer."""
        ...

    def transaction(self, member: str) -> Transaction | None:
        """Returns the transaction of a service's process, as its coordinator knows it."""
        ...

    def brokers_are_whole(self) -> bool:
        """Whether every broker is up and has every copy of every partition."""
        ...


@dataclass(slots=True)
class Striker:
    """Carries out a plan. `step` is called again and again, with the keeper's step in between."""

    pending: list[Strike]
    keeper: Keeper
    run: Seen
    rng: random.Random
    sleep: Callable[[float], None] = time.sleep
    struck: list[Struck] = field(default_factory=list)

    def step(self) -> None:
        """Strikes at most once: the first strike that is due and would count now."""
        if not self._made_progress():
            return
        now_s = self.run.now_s()
        for strike in [strike for strike in self.pending if strike.at_s <= now_s]:
            done = self._broker(strike) if strike.kind in OF_BROKERS else self._member(strike)
            if done is not None:
                self.pending.remove(strike)
                self.struck.append(done)
                return

    def _made_progress(self) -> bool:
        answers = self.run.answered()
        has_work = self.run.published() > answers
        return has_work and (not self.struck or answers > self.struck[-1].answers)

    def _broker(self, strike: Strike) -> Struck | None:
        if not self.run.brokers_are_whole():
            return None
        victim = strike.victims[0]
        in_flight = self.run.published() - self.run.answered()
        process = self.keeper.kept[victim].process
        if strike.kind == "kill a broker":
            process.kill()
        else:
            process.pause()
        return self._note(strike, victim, in_flight, None)

    def _member(self, strike: Strike) -> Struck | None:
        for victim in strike.victims:
            if self.keeper.is_up(victim) and (in_flight := self.run.in_flight(victim)):
                return self._strike(strike, victim, in_flight)
        return None

    def _strike(self, strike: Strike, victim: str, in_flight: int) -> Struck | None:
        process = self.keeper.kept[victim].process
        for _ in range(TRIES_MAX if strike.kind == "kill in a transaction" else 1):
            process.pause()
            self.sleep(SETTLE_S)
            transaction = self.run.transaction(victim)
            if strike.kind != "kill in a transaction" or (
                transaction is not None and transaction.is_open
            ):
                if strike.kind != "pause":
                    process.kill()
                return self._note(strike, victim, in_flight, transaction)
            process.resume()
            self.sleep(self.rng.uniform(0.0, 0.03))
        return None

    def _note(
        self, strike: Strike, victim: str, in_flight: int, transaction: Transaction | None
    ) -> Struck:
        now_s = self.run.now_s()
        note = self.keeper.paused if strike.kind.startswith("pause") else self.keeper.killed
        note(victim, now_s, away_s=strike.away_s)
        return Struck(
            at_s=now_s,
            kind=strike.kind,
            victim=victim,
            away_s=strike.away_s,
            in_flight=in_flight,
            answers=self.run.answered(),
            transaction=transaction,
        )


def quiet_after_s(
    struck: Sequence[Struck], answers_s: Sequence[float], *, horizon_s: float = 30.0
) -> Mapping[Kind, list[float]]:
    """Returns for each strike, by kind, the longest time without an answer after it, until the next
    strike or for `horizon_s`.

    `answers_s`: when answers were read, seconds of the run, in any order.
    """
    found: dict[Kind, list[float]] = {}
    times = sorted(answers_s)
    for number, strike in enumerate(struck):
        next_s = struck[number + 1].at_s if number + 1 < len(struck) else strike.at_s + horizon_s
        end_s = min(next_s, strike.at_s + horizon_s)
        points = [strike.at_s, *(at_s for at_s in times if strike.at_s < at_s < end_s), end_s]
        gaps = [later - earlier for earlier, later in pairwise(points)]
        found.setdefault(strike.kind, []).append(max(gaps))
    return found
