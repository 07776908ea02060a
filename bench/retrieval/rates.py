"""The search for the highest rate that holds a latency target. A pure state machine: rates out,
verdicts in.
"""

from __future__ import annotations

import msgspec


class RateFound(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `held_per_s`: the highest rate that held, 0 where none did; `failed_per_s`:
    the lowest that did not.

    The rate sought lies between them; without a rate that held it is below `failed_per_s`, without
    one that failed it is above `held_per_s`.
    """

    held_per_s: float
    failed_per_s: float | None
    tries: int


class RateSearch:
    """Doubles or halves from a guess until the target lies between two rates, then bisects
    (geometric mean).

    Ends after `tries_max` rates, when the two rates are nearer than `ratio_min`, or below
    `rate_min_per_s`. A verdict that contradicts another (noise) is resolved downwards: a rate above
    one that failed never counts as held.
    """

    def __init__(
        self,
        guess_per_s: float,
        *,
        tries_max: int = 7,
        ratio_min: float = 1.1,
        rate_min_per_s: float = 0.5,
    ) -> None:
        if guess_per_s <= 0 or tries_max < 1 or ratio_min <= 1 or rate_min_per_s <= 0:
            raise ValueError("guess, tries and lowest rate must be positive, and the ratio above 1")
        self._next = max(guess_per_s, rate_min_per_s)
        self._held = 0.0
        self._failed: float | None = None
        self._tries = 0
        self._tries_max = tries_max
        self._ratio_min = ratio_min
        self._rate_min = rate_min_per_s

    def next_rate(self) -> float | None:
        """Returns the rate to try, or None when the search is over."""
        if self._tries >= self._tries_max:
            return None
        if self._failed is not None:
            if self._failed <= self._rate_min:
                return None
            if self._held and self._failed / self._held < self._ratio_min:
                return None
        return self._next

    def judge(self, held: bool) -> None:
        """Takes the verdict on the rate that `next_rate` returned."""
        self._tries += 1
        if held:
            self._held = max(self._held, self._next)
        else:
            self._failed = self._next if self._failed is None else min(self._failed, self._next)
        if self._failed is None:
            self._next = self._held * 2
        elif not self._held:
            self._next = max(self._failed / 2, self._rate_min)
        else:
            self._next = (self._held * self._failed) ** 0.5

    def found(self) -> RateFound:
        """Returns what is known now."""
        return RateFound(held_per_s=self._held, failed_per_s=self._failed, tries=self._tries)
