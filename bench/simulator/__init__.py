"""What would it cost, without a disk? Windows of questions as cluster ids, searched on virtual time by the real planners.

`trace.py` is what is asked, `disk.py` and `scoring.py` what things cost, `cluster_major.py` and `query_by_query.py` the
drivers that take the place of the executors.
*Invariant:* no decision is made here: what to read, to evict, to score and when to answer is what `searcher.plan` says. So
bytes are those of a real run of the same windows, and latencies are as good as the costs.
Absent on purpose: Kafka, embedding, grouping, and the vectors themselves.
"""
