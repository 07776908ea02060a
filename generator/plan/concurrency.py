"""Decides how many requests an LLM server gets at once: hill climbing on output tokens a second.

The method is that of PCC (Dong et al., NSDI 2015), which finds the rate of a connection: measure a
utility at two settings beside each other, and move to the better one. Here the setting is the
number of requests `n`, and the utility

    ln(output tokens a second) - ELASTICITY_MIN * ln(n)

so a tenth more requests must give at least a hundredth more tokens. If the tokens a second rise up
to a knee and not beyond, the utility is highest at the knee. The controller starts by doubling `n`,
as TCP's slow start does; each first token admits one more request, so the server never gets a
burst. After that the controller tries a larger and a smaller `n` in turns. It measures the `n` in
use before and after each try. It tries less often while no try is better.

*No backlog, no change:* only time in which all slots were taken is measured. *The limit falls* when
the server refuses requests as busy, when vLLM preempts running requests, and when the p95 of the
time to first token exceeds its bound. A long time to first token does not lower the limit below the
first one, because a slow server may need as long for one request. *The limit does not rise* while
too many requests wait for their first token, or where memory or the time to first token would
exceed its bound. The figures of vLLM make the controller react sooner; it works without them, from
what the generator sees.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

FIRST = 8
ELASTICITY_MIN = 0.1
START_FACTOR = 2.0
TRY_FACTOR = math.sqrt(2)
DECREASE = 0.7
"""The limit is multiplied by this when the server is overloaded."""
SLOWER = 0.6
"""A rate below this share of the usual rate restarts the search: the server has changed."""
MEASURE_US_MIN = 2_000_000
START_TURNOVER, TURNOVER = 0.5, 1.0
"""A measurement lasts until so many answers have ended, as a share of the limit."""
QUIET_ROUNDS_MAX = 8
"""Measurements between two tries, once many have failed."""
PENDING_SHARE_MAX = 1 / 3
"""The limit does not rise while more than this share of it waits for a first token."""
RAMP_US_MAX = 5_000_000
"""If the limit does not rise for so long, the limit that was reached is measured."""
KV_USED_MAX = 0.95
TTFTS_KEPT = 200
TTFT_AGE_US_MAX = 120_000_000
ROOM_MIN = 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcurrencyBounds:
    """`first`: the limit at the start. `ttft_us_max`: bounds the p95 of the time to first token."""

    first: int
    limit_max: int
    ttft_us_max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLoad:
    """What a server says about itself. `preemptions`: requests preempted since its start."""

    running: int
    waiting: int
    kv_used: float
    preemptions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadSample:
    """One server: its requests in flight now, and what the generator saw since the last sample.

    `pending`: requests in flight without a first token. `output_tokens`: tokens that arrived.
    `answers`: answers that ended. `ttfts_us`: the time to first token of each request that got one.
    `is_busy`: the server refused a request as too many. `load`: None if the server does not report
    it.
    """

    in_flight: int
    pending: int
    output_tokens: int
    answers: int
    ttfts_us: tuple[int, ...] = ()
    is_busy: bool = False
    load: ServerLoad | None = None


@dataclass(kw_only=True, slots=True)
class _Measurement:
    """One limit is measured. `begun_us` None: `first_tokens_missing` first tokens come before."""

    first_tokens_missing: int
    begun_us: int | None = None
    tokens: int = 0
    answers: int = 0


class ConcurrencyController:
    """See the module. A step costs O(`TTFTS_KEPT`)."""

    def __init__(self, bounds: ConcurrencyBounds) -> None:
        self._bounds = bounds
        self._is_start = True
        self._base = self._limit = self._target = min(bounds.first, bounds.limit_max)
        self._below: tuple[int, float] | None = None
        """While `n` is doubled: the last limit that was an improvement, and its rate."""
        self._base_rate: float | None = None
        self._tried_rate: float | None = None
        self._usual_rate: float | None = None
        self._tries_up = True
        self._wins = self._failures = 0
        self._quiet_rounds = 0
        self._ttfts: deque[tuple[int, int]] = deque(maxlen=TTFTS_KEPT)
        self._cut_us = self._moved_us = 0
        self._preemptions: int | None = None
        self._kv_used = 0.0
        self._measured = _Measurement(first_tokens_missing=self._limit)

    @property
    def limit(self) -> int:
        """The requests that the server gets at once."""
        return self._limit

    def step(self, sample: LoadSample, now_us: int) -> int:
        """Takes a sample and returns the limit. Call it about once a second."""
        self._keep_ttfts(sample, now_us)
        is_taken_back = self._is_taken_back(sample.load)
        if sample.in_flight > self._limit:
            self._measured.begun_us = None  # earlier requests have not ended
        elif sample.is_busy or is_taken_back:
            self._cut(1, now_us)
        elif self._is_late() and self._limit > self._bounds.first:
            self._cut(self._bounds.first, now_us)
        elif sample.in_flight < self._limit:
            self._measure_at(self._base, now_us)
            self._below = self._base_rate = self._tried_rate = None
        elif self._limit < self._target:
            self._ramp(sample, now_us)
        else:
            self._measure(sample, now_us)
        self.check_integrity()
        return self._limit

    def check_integrity(self) -> None:
        """Asserts what must be true between two steps."""
        assert 1 <= self._base <= self._bounds.limit_max, "the base is out of bounds"
        assert 1 <= self._target <= self._bounds.limit_max, "the target is out of bounds"
        assert 1 <= self._limit <= self._target, "more than is tried"

    def _keep_ttfts(self, sample: LoadSample, now_us: int) -> None:
        for ttft_us in sample.ttfts_us:
            if now_us - ttft_us >= self._cut_us:  # else the request was sent under another limit
                self._ttfts.append((now_us, ttft_us))
        while self._ttfts and self._ttfts[0][0] < now_us - TTFT_AGE_US_MAX:
            self._ttfts.popleft()

    def _ttft_p95_us(self) -> int:
        """Returns the 95th percentile, but never a single slowest one; 0 if there are too few."""
        times = sorted(ttft_us for _, ttft_us in self._ttfts)
        above = max(1, len(times) // 20)
        return times[-1 - above] if len(times) > above else 0

    def _is_taken_back(self, load: ServerLoad | None) -> bool:
        if load is None:
            return False
        before, self._preemptions = self._preemptions, load.preemptions
        self._kv_used = load.kv_used
        return before is not None and load.preemptions > before

    def _is_late(self) -> bool:
        return self._ttft_p95_us() > self._bounds.ttft_us_max

    def _cut(self, least: int, now_us: int) -> None:
        """Goes back to the base, or below it if the base itself was too much."""
        if self._limit <= self._base:
            self._base = max(least, int(self._limit * DECREASE))
        self._is_start = False
        self._ttfts.clear()
        self._cut_us = now_us
        self._usual_rate = None
        self._failed()
        self._measure_at(self._base, now_us)

    def _measure_at(self, target: int, now_us: int) -> None:
        if target > self._limit:
            missing = target - self._limit
        else:
            missing, self._limit = 0, target
        self._target, self._moved_us = target, now_us
        self._measured = _Measurement(first_tokens_missing=missing)

    def _ramp(self, sample: LoadSample, now_us: int) -> None:
        """Admits one more request for each first token, unless too many wait for theirs."""
        waiting = 0 if sample.load is None else sample.load.waiting
        first_tokens = len(sample.ttfts_us)
        self._measured.first_tokens_missing -= first_tokens
        has_room = max(sample.pending, waiting) <= max(1, self._limit * PENDING_SHARE_MAX)
        if has_room and first_tokens:
            self._limit = min(self._target, self._limit + first_tokens)
            self._moved_us = now_us
        if now_us - self._moved_us >= RAMP_US_MAX:
            self._target, self._moved_us = self._limit, now_us
            if self._limit <= self._base:
                self._end_try()
                self._measure_at(self._base, now_us)

    def _measure(self, sample: LoadSample, now_us: int) -> None:
        measured = self._measured
        if measured.begun_us is None:
            measured.first_tokens_missing -= len(sample.ttfts_us)
            if measured.first_tokens_missing <= 0:
                measured.begun_us = now_us
            return
        measured.tokens += sample.output_tokens
        measured.answers += sample.answers
        took_us = now_us - measured.begun_us
        turnover = START_TURNOVER if self._is_start else TURNOVER
        if took_us < MEASURE_US_MIN or measured.answers < self._target * turnover:
            return
        rate = max(measured.tokens, 1) / took_us * 1_000_000
        if self._is_start:
            target = self._next_of_start(rate)
        elif self._target != self._base:
            self._tried_rate = rate
            target = self._base
        else:
            target = self._next_of_climb(rate)
        self._measure_at(target, now_us)

    # ---- where to go next

    def _next_of_start(self, rate: float) -> int:
        below, at = self._below, self._target
        if below is None or _gain(below[0], below[1], at, rate) > 0:
            self._base, self._below, self._usual_rate = at, (at, rate), rate
            target = self._raised(START_FACTOR)
            if target > at:
                return target
        self._end_start()
        return self._base

    def _end_start(self) -> None:
        self._is_start, self._below = False, None
        self._base_rate = self._tried_rate = None
        self._wins = self._failures = self._quiet_rounds = 0

    def _next_of_climb(self, rate: float) -> int:
        """Judges a try between two measurements of the base, and chooses what is measured next."""
        usual = self._usual_rate
        if usual is not None and rate < SLOWER * usual:
            self._is_start, self._usual_rate, self._below = True, rate, None
            self._base = max(1, self._base // 2)
            return self._base
        self._usual_rate = rate if usual is None else (usual + rate) / 2
        if self._tried_rate is not None and self._base_rate is not None:
            around = math.sqrt(self._base_rate * rate)
            if _gain(self._base, around, self._tried(), self._tried_rate) > 0:
                self._wins += 1
            else:
                self._failed()
        self._base_rate, self._tried_rate = rate, None
        if self._wins == 2:  # a single win may be noise
            self._base, self._base_rate, self._usual_rate = self._tried(), None, None
            self._wins = self._failures = self._quiet_rounds = 0
            return self._base
        if self._quiet_rounds > 0:
            self._quiet_rounds -= 1
            return self._base
        if self._tried() == self._base:
            self._failed()
        return self._tried()

    def _end_try(self) -> None:
        if self._is_start:
            self._end_start()
        else:
            self._failed()

    def _failed(self) -> None:
        """Changes the direction of the next try; waits longer after each pair of failed tries."""
        self._wins, self._base_rate, self._tried_rate = 0, None, None
        self._failures += 1
        self._tries_up = not self._tries_up
        self._quiet_rounds = min(QUIET_ROUNDS_MAX, 2 ** (self._failures // 2) - 1)

    def _tried(self) -> int:
        if self._tries_up:
            return self._raised(TRY_FACTOR)
        return max(1, min(self._base - 1, round(self._base / TRY_FACTOR)))

    def _raised(self, factor: float) -> int:
        """Returns the base times `factor`, or less where memory or a bound does not allow it."""
        base, p95_us = self._base, self._ttft_p95_us()
        room = min(factor, KV_USED_MAX / max(self._kv_used, 0.01))
        if p95_us:
            room = min(room, self._bounds.ttft_us_max / p95_us)
        if room < ROOM_MIN:
            return base
        return min(self._bounds.limit_max, max(base + 1, round(base * room)))


def _gain(at: int, rate: float, other: int, other_rate: float) -> float:
    """Returns how much higher the utility is at `other`."""
    return math.log(other_rate / rate) - ELASTICITY_MIN * math.log(other / at)
