"""What `carpool bench overhead` measures: a delivery on a number of brokers, with its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from carpool.errors import ConfigError

Delivery = Literal["exactly_once", "at_least_once"]


class DeliveryContestant(msgspec.Struct, frozen=True, kw_only=True):
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


CONTESTANTS = (
    DeliveryContestant(
        name="exactly once, one broker",
        delivery="exactly_once",
        brokers=1,
        p50_ms_max=60,
        p99_ms_max=150,
    ),
    DeliveryContestant(
        name="exactly once, three brokers", delivery="exactly_once", brokers=3, p50_ms_max=120
    ),
    DeliveryContestant(
        name="at least once, one broker", delivery="at_least_once", brokers=1, p50_ms_max=25
    ),
)


def chosen(names: Sequence[str]) -> tuple[DeliveryContestant, ...]:
    """Returns the contestants with these short names, all for none. Raises `ConfigError`."""
    known = {each.short_name: each for each in CONTESTANTS}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no contestant {name!r}; there are {', '.join(known)}")
    return tuple(each for name, each in known.items() if name in names or not names)
