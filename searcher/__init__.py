"""Which bytes to read, keep and score; what can be answered already?

*Invariant:* `budget_bytes` = clusters resident + reads in flight, held exactly; a read is reserved
before it starts. *Invariant:* what is damaged is never scored, and the retrieval says what was
skipped. *Invariant:* `next` of a group is advice: absent, stale or wrong, it never changes a
result. Absent on purpose: embedding and probing (the grouper has done both), FAISS (a cluster is
one matrix product), quantised codes, drafts.
"""
