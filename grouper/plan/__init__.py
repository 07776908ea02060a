"""When does a window close, which queries share a group, how are groups cut into records?

*Invariant:* pure: values and `now_us` in, decisions out. No clock, I/O, threads, Kafka or
randomness. *Invariant:* ties are broken by arrival. Absent on purpose: embedding and probing, which
are arithmetic, not decisions.
"""
