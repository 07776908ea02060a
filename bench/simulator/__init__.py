"""The searcher on virtual time: windows of cluster ids, planned by the searcher's own planner.

*Invariant:* no decision is made here: `searcher.plan` decides what is read, evicted and scored, and
when a query is answered. So bytes are those of a real run of the same windows, and latencies are as
accurate as the costs. Absent on purpose: Kafka, embedding, the time of grouping, the vectors.
"""
