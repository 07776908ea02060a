"""Which passages are warmed while a search runs? One file for each policy. Pure.

*Invariant:* a policy sees events of queries and the load of the engine, nothing else.
"""
