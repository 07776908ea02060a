"""Which cluster is read, evicted and scored next?

*Invariant:* pure: events in, actions out, no clock, no I/O, no threads. *Invariant:* a demand read
never waits for a prefetch to be queued before it.
"""
