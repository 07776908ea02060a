"""What does the generator decide? Which prompt is next, when to pause, what to ask, what was cited.

*Invariant:* values and `now_us` in, decisions out: no clock, no I/O, no threads, no randomness.
*Invariant:* a query is waiting, in flight or gone. *Invariant:* a citation is a number that the
model wrote. Absent on purpose: an order by cached prefixes, and speculation on drafts.
"""
