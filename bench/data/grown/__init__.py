"""Where does a corpus larger than the real one come from? Real passages and their sentences, mixed
until they fit.

*Invariant:* a grown set is asked real questions only, never documents with noise on them.
*Invariant:* a set that does not behave as the real one does (recall ceilings of the probes,
clusters that a window touches) is refused, by the generator itself, with the table. *Invariant:*
the same data, rows and seed give the same vectors. Absent on purpose: text of the grown documents
(a row says which passages it is made of), and any figure of speed.
"""
