"""What is stored on disk, byte for byte? Every file of an index (format v2), one module each.

*Invariant:* the manifest is written last (temp, fsync, rename): an index without one does not
exist. *Invariant:* what is read is checked before it is used; damage raises `CorruptionError` with
file and byte. *Invariant:* ids inside are row numbers; external ids, titles and texts are in the
document store only. Numbers are little-endian, nothing is pickled. Absent on purpose: caches and
budgets (see the searcher), and the decision what to write (see the indexer).
"""
