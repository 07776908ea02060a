"""What `carpool bench overhead` measures: a delivery on a number of brokers, with its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from carpool.errors import ConfigError

Delivery = Literal["exactly_once", "at_least_once"]


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery on `brokers` brokers, and the bounds of a question's total time in ms."""

    name: str
    delivery: Delivery
    brokers: int
    p50_ms_max: float
    p99_ms_max: float | None = None

    @property
    def short_name(self) -> str:
        """The name on the command line and of folders, such as exactly-once-3."""
        return f"{self.delivery.replace('_', '-')}-{self.brokers}"


def _contestant(
    name: str, delivery: Delivery, brokers: int, p50_ms_max: float, p99_ms_max: float | None = None
) -> Contestant:
    return Contestant(
        name=name,
        delivery=delivery,
        brokers=brokers,
        p50_ms_max=p50_ms_max,
        p99_ms_max=p99_ms_max,
    )


CONTESTANTS = (
    _contestant("exactly once, one broker", "exactly_once", 1, 60, 150),
    _contestant("exactly once, three brokers", "exactly_once", 3, 120),
    _contestant("at least once, one broker", "at_least_once", 1, 25),
)


def chosen(names: Sequence[str]) -> tuple[Contestant, ...]:
    """Returns the contestants with these short names, all for none. Raises `ConfigError`."""
    known = {each.short_name: each for each in CONTESTANTS}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no contestant {name!r}; there are {', '.join(known)}")
    return tuple(each for name, each in known.items() if name in names or not names)
