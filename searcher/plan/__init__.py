"""What to read next, and what to evict for it?

*Invariant:* pure: events in, actions out, no clock, no I/O, no threads. *Invariant:* a demand read
never waits for a prefetch to be queued before it. Absent on purpose: time, on which no decision
here depends.
"""
