"""What does the generator decide? Which prompt next, when to pause, what the model is asked, what
it cited.

*Invariant:* values and `now_us` in, decisions out: no clock, no I/O, no threads, no randomness.
*Invariant:* a query is waiting or running or gone, never two of these. *Invariant:* a citation is a
number that the model wrote. Absent on purpose: an order that knows the cached prefixes (it will
stand beside `ArrivalOrder`), and speculation on drafts.
"""
