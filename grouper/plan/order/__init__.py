"""In which order do groups and queries of a window leave? One order a file.

*Invariant:* whoever is put in front of a query with a deadline arrived before it. *Invariant:*
groups stay together but where that would break the first; then they are cut, and every query is
still in exactly one group.
"""

from grouper.plan.order.order import ORDER_NAMES, GroupOrder, OrderName, group_order

__all__ = ["ORDER_NAMES", "GroupOrder", "OrderName", "group_order"]
