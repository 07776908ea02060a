"""A corpus larger than the real one: real passages and their sentences, mixed.

*Invariant:* a grown set is asked real questions only, never documents with noise on them.
*Invariant:* a set that does not behave as the real one does is refused, with the table.
*Invariant:* the same data, rows and seed give the same vectors.
Absent on purpose: text of the grown documents (a row names its passages), and figures of speed.
"""
