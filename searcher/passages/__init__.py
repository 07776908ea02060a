"""How do results get their passages? Those of all results that wait are read together.

*Invariant:* a page is read once for all of them, past the page cache, into buffers that are a fixed
part of `budget_bytes`. *Invariant:* a document with a wrong checksum, or that cannot be read, fails
only the queries that want it. Absent on purpose: a cache of documents.
"""
