"""How do several searchers scan one query? Each lane scans its own clusters; the home lane merges.

A searcher writes what it found for queries of other lanes to `rag.scans.v1`, and reads there what
the others found for its own (docs/adr/0016). *Invariant:* nothing here is needed for a result: what
does not come is scanned at home.
"""
