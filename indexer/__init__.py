"""How do documents become clusters on disk? Read, embed, cluster, write, verify, measure.

Decisions are in `plan`, which is pure. Not here, on purpose: updates in place, deletes,
calibration for each query.
"""
