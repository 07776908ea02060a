"""The ways to deliver that `carpool bench overhead` judges, each on so many brokers, with what was
promised of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from carpool.errors import ConfigError

Delivery = Literal["exactly_once", "at_least_once"]


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """A way to deliver on so many brokers, and the most that its total may be, in ms."""

    name: str
    delivery: Delivery
    brokers: int
    p50_ms_max: float
    p99_ms_max: float | None = None

    @property
    def short_name(self) -> str:
        """What it is called on the command line and in names of folders, such as exactly-once-3."""
        return f"{self.delivery.replace('_', '-')}-{self.brokers}"


CONTESTANTS = (
    Contestant(
        name="exactly once, one broker",
        delivery="exactly_once",
        brokers=1,
        p50_ms_max=60,
        p99_ms_max=150,
    ),
    Contestant(
        name="exactly once, three brokers", delivery="exactly_once", brokers=3, p50_ms_max=120
    ),
    Contestant(
        name="at least once, one broker", delivery="at_least_once", brokers=1, p50_ms_max=25
    ),
)


def chosen(names: Sequence[str]) -> tuple[Contestant, ...]:
    """Returns the contestants of these short names, in their usual order; all where none is named.
    Raises `ConfigError`.
    """
    known = {each.short_name: each for each in CONTESTANTS}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no contestant {name!r}; there are {', '.join(known)}")
    return tuple(each for name, each in known.items() if name in names or not names)
