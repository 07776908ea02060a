"""What would it cost, without a disk? Windows of questions as cluster ids, searched on virtual time by the real planners.

`trace.py` is what is asked, `disk.py` and `costs.py` what things cost, `cluster_major.py` the driver that takes the place of the
executor, `real.py` the executor itself over the same windows, and `agreement.py` compares the two.
*Invariant:* no decision is made here: what to read, to evict, to score and when to answer is what `searcher.plan` says. So
bytes are those of a real run of the same windows, and latencies are as good as the costs.
Absent on purpose: Kafka, embedding, grouping, and the vectors themselves.
"""
