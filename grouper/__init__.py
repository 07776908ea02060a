"""Which queries share a group, and in which order?

Windows of queries are embedded in one batch, probed against the centroids, and written to
`rag.groups.v1` in the order of arrival: by default as one group, or by the clusters they share
(CaGR-RAG, section 3.2). Under a backlog the next full windows are prepared early: they are the
horizon in the record.

*Invariant:* every query ends in exactly one group, one refusal or one terminal answer; no query of
a closed window moves to the next. *Invariant:* a query waits only while more are pending or until
the next commit, never for the horizon. *Invariant:* the same windows give the same groups.
*Invariant:* in its window a query with a deadline is never overtaken. *Invariant:* a window
contains queries of one priority class, whose tenants take turns if not all fit; expired queries are
answered at the next tick. Absent on purpose: the vectors of the index (the grouper reads its
centroids only), the cache (the searcher's), any order across windows, and the searcher's progress
(`docs/adr/0006-horizon.md`).
"""
