"""In which order do groups and queries of a window leave? One order a file.

*Invariant:* no query overtakes one with a deadline. *Invariant:* a group is cut only where that
would break the first; every query is still in exactly one group.
"""

from grouper.plan.order.order import ORDER_NAMES, GroupOrder, OrderName, group_order

__all__ = ["ORDER_NAMES", "GroupOrder", "OrderName", "group_order"]
