"""CaGR-RAG's figures (2025): its algorithms with its settings and clock, and what Carpool does.

*Invariant:* all methods find the same rows, with one reader of the disk and one scorer, so that
only the algorithm differs. Absent on purpose: pictures, limits on the whole process, open loops.
"""
