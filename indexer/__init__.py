"""How do documents become clusters on disk? Read, embed, cluster, write, verify, measure.

*Invariant:* an index appears whole or not at all; a build that was killed goes on where it was and
ends in the same bytes. *Invariant:* a bad line is counted and reported with its number, never
dropped in silence. Formats are `carpool.disk`'s; what is decided here (what remains, how many
clusters, how many probes) is in `plan.py`, which is pure. Absent on purpose: updates in place and
deletes, calibration per query, compressed codes.
"""
