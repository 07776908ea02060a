"""Which bytes are read, kept and scored?

*Invariant:* codes, clusters and reads take at most `budget_bytes`; memory is reserved before a read
starts. *Invariant:* a damaged page is never scored, and the result names the cluster. *Invariant:*
`next` and `horizon` of a group are advice: they change no result. Absent on purpose: embedding and
probing (the grouper did both), drafts of searches with codes.
"""
