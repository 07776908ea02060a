"""Which queries of a window belong together? One policy a file, all behind `GroupingPolicy`.

*Invariant:* a policy returns a partition of the window: each query in exactly one group, groups in
the order of their first queries, queries of a group in arrival order. Absent on purpose: any other
order (`grouper.plan.order`).
"""

from grouper.plan.grouping.policy import (
    LINKAGE_NAMES,
    POLICY_NAMES,
    GroupingPolicy,
    Groups,
    LinkageName,
    PolicyName,
    grouping_policy,
)

__all__ = [
    "LINKAGE_NAMES",
    "POLICY_NAMES",
    "GroupingPolicy",
    "Groups",
    "LinkageName",
    "PolicyName",
    "grouping_policy",
]
