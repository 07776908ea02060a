"""Which bytes are read, kept and scored?

*Invariant:* clusters that are resident or being read take at most `budget_bytes`; memory is
reserved before a read starts. *Invariant:* a damaged page is never scored, and the result names the
cluster. *Invariant:* `next` of a group is advice: it changes no result. Absent on purpose:
embedding and probing (the grouper did both), drafts.
"""
