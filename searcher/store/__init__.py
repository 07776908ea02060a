"""How do bytes come from the disk? Block engines: io_uring, threads, from memory, and without data.

*Invariant:* a read ends once, with full buffers or with a `BlockError`. *Invariant:* an engine
keeps no buffer of a read that has ended. Absent on purpose: checksums (`searcher.memory` verifies
every block).
"""
