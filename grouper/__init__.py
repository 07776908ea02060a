"""Which queries should share a trip, and in which order?

Windows of queries are embedded in one batch, probed against the centroids, grouped by the clusters they share
(CaGR-RAG, section 3.2) and written to `rag.groups.v1` with what comes next.

*Invariant:* every query taken in ends in exactly one group, one refusal or one terminal answer; nothing is carried over
from one window to the next. *Invariant:* nothing waits when nothing more is waiting. *Invariant:* the same window gives
the same groups. Absent on purpose: the vectors of the index (the grouper reads its centroids only), the cache (the
searcher's), and any order across windows.
"""
