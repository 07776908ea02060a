"""How do a cluster's bytes come off the disk? Readers: with O_DIRECT, from memory, and one that has
nothing.

*Invariant:* a reader fills the buffer that it is given, whole, or raises `CorruptionError` or
`RetryableError`. *Invariant:* buffers belong to the cache; a reader keeps none. Absent on purpose:
checksums (`carpool.disk.segment` checks every read), queues and threads (the cache has them).
"""
