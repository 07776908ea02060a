"""What a key may ask for: so many requests a minute, and a cost a day. Counted by this gateway."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf
from threading import Lock

from gateway.keys import Key
from producers.settings import ClientSettings
from schemas.answer import Answer

MINUTE_S, DAY_S = 60.0, 86_400
PER_MILLION = 1e-6


@dataclass(slots=True)
class _Use:
    """Of one key. `left`: requests that may come now; `day`: that of `cost`, UTC."""

    left: float = inf
    at_s: float = 0.0
    cost: float = 0.0
    day: int = 0


class Limits:
    """For one event loop, but for `charge`. It forgets when the process ends.

    Other gateways have their own.
    """

    def __init__(self, prices: ClientSettings) -> None:
        self._prices = prices
        self._lock = Lock()
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)

    def refusal(self, key: Key, now_s: float) -> tuple[str, int] | None:
        """Counts a request. Returns why it may not come now, and seconds until it may."""
        use = self._uses[key.sha256]
        if key.per_minute:
            grown = use.left + (now_s - use.at_s) * key.per_minute / MINUTE_S
            use.left, use.at_s = min(grown, float(key.per_minute)), now_s
            if use.left < 1:
                wait_s = (1 - use.left) * MINUTE_S / key.per_minute
                return f"this key may send {key.per_minute} requests a minute", int(wait_s) + 1
            use.left -= 1
        if not self.charge(key, 0.0, now_s):
            left_s = DAY_S - int(now_s % DAY_S)
            return f"this key has used its {key.cost_a_day:g} of today", left_s
        return None

    def spent(self, key: Key, answer: Answer, now_s: float) -> None:
        """Counts what the tokens of an answer cost (`client.price_in`, `client.price_out`)."""
        if answer.usage is None or answer.replayed:
            return
        tokens_in, tokens_out = answer.usage.input_tokens, answer.usage.output_tokens
        cost = tokens_in * self._prices.price_in + tokens_out * self._prices.price_out
        self.charge(key, cost * PER_MILLION, now_s)

    def charge(self, key: Key, cost: float, now_s: float) -> bool:
        """Counts a cost; returns whether the key may ask more today. Thread-safe."""
        use, day = self._uses[key.sha256], int(now_s // DAY_S)
        with self._lock:
            if use.day != day:
                use.day, use.cost = day, 0.0
            use.cost += cost
            return not key.cost_a_day or use.cost < key.cost_a_day
