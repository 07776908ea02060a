"""How do candidates get exact scores? Their rows are read, page by page, and multiplied.

*Invariant:* a row is scored only if its pages have the right checksums; else the result names its
cluster. *Invariant:* buffers of reads in progress take a fixed part of `budget_bytes`.
"""
