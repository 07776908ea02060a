"""Which clusters stay in memory? Eviction policies, and the cache that holds the budget.

*Invariant:* a policy only ranks; who may be evicted at all is the planner's business. *Invariant:*
a buffer is freed before the read that takes its place starts. `policies` names them: `lru`, `lfu`,
`edgerag`, `gdsf`, `tiny_lfu` know the past, `farthest_next_use` what the grouper has read ahead.
"""
