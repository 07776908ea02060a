"""In which order are clusters loaded and scored? The seam `Executor`, and one file an order.

`cluster_major` reads each cluster once for all queries in hand; `query_by_query` searches one query
after the other, as the published algorithms do, and is what they are measured with. *Invariant:* an
executor decides nothing: planners in `searcher.plan` do. *Invariant:* one thread searches; others
only leave word. Absent on purpose: Kafka, groups' records and answers (the service's).
"""
