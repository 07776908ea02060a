"""How is an index with codes searched? Codes are scanned in memory, and few rows are read.

The codes of all clusters are in memory (`load`), or those that are needed next are (`paged`). What
to read, scan and evict then is decided in `searcher.plan.paged_codes`; rows are read by
`searcher.rows`. *Invariant:* codes, their buffers, and the buffers of rows are within
`budget_bytes`.
"""
