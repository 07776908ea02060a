"""Which queries should share a trip, and in which order?

Windows of queries are embedded in one batch, probed against the centroids, grouped and ordered by
the clusters they share (CaGR-RAG, section 3.2) and written to `rag.groups.v1` with what comes next.
Under a backlog full windows are prepared ahead of the one that leaves: its record's horizon.

*Invariant:* every query taken in ends in exactly one group, one refusal or one terminal answer;
nothing is carried over from one window to the next. *Invariant:* nothing waits when nothing more is
waiting, but for the commit that it would lie about for anyway, and nothing ever waits for the
horizon. *Invariant:* the same windows give the same groups. *Invariant:* in its window a query with
a deadline is never overtaken. *Invariant:* a window holds queries of one priority class, whose
tenants take turns where not all fit; what expires is answered at the next tick, wherever it waits.
Absent on purpose: the vectors of the index (the grouper reads its centroids only), the cache (the
searcher's), any order across windows, and how far the searcher is (`docs/adr/0006-horizon.md`).
"""
