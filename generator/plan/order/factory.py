"""The orders by name. Pure."""

from __future__ import annotations

from typing import Literal, get_args

from generator.plan.order.cached_prefix import CachedPrefix
from generator.plan.order.cached_prefixes import CachedPrefixes
from generator.plan.order.protocol import Order

OrderName = Literal["arrival", "cached_prefix"]
ORDER_NAMES: tuple[OrderName, ...] = get_args(OrderName)


def make_order(name: OrderName, prefixes: CachedPrefixes) -> Order | None:
    """Returns the order of one server; None for the order of arrival, which asks no cache."""
    return None if name == "arrival" else CachedPrefix(prefixes)
