"""The orders by name. Pure."""

from __future__ import annotations

from typing import Literal, get_args

from generator.plan.order.cache_aware import CacheAware
from generator.plan.order.cached_prefix import CachedPrefix
from generator.plan.order.cached_prefixes import CachedPrefixes
from generator.plan.order.protocol import Order

OrderName = Literal["arrival", "cache_aware", "cached_prefix"]
ORDER_NAMES: tuple[OrderName, ...] = get_args(OrderName)


def make_order(name: OrderName, prefixes: CachedPrefixes) -> Order | None:
    """Returns the order of one server; None for the order of arrival, which asks no cache."""
    if name == "arrival":
        return None
    return CachedPrefix(prefixes) if name == "cached_prefix" else CacheAware(prefixes)
