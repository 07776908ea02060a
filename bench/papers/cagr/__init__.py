"""The figures of CaGR-RAG, measured here: first with the paper's settings and clock, then what
Carpool does instead.

*Invariant:* the published algorithms get our reader and scorer, so that only the algorithm differs.
Absent on purpose: limits on the whole process and open loops (`bench.retrieval`).
"""
