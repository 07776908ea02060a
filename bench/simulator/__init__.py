"""The searcher on virtual time: windows of cluster ids, planned by the searcher's own planner.

*Invariant:* no decision is made here: what to read, to evict, to score and when to answer is what
`searcher.plan` says. So bytes are those of a real run of the same windows, and latencies are as
good as the costs. Absent on purpose: Kafka, embedding, the time of grouping, the vectors.
"""
