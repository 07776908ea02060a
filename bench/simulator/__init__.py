"""What would it cost, without a disk? Windows of questions as cluster ids, searched on virtual time
by the real planners.

`trace.py` is what is asked, `disk.py`, `memory.py` and `costs.py` what things cost;
`cluster_major.py` and `query_by_query.py` take the place of the executors, `ways.py` says what they
are told to do. `rig.py` opens the search plane as the searcher does, `real.py` runs it over the
same windows, `disk_calibration.py` and `calibration.py` make costs of measurements, and
`agreement.py` compares the two. *Invariant:* no decision is made here: what to read, to evict, to
score and when to answer is what `searcher.plan` says. So bytes are those of a real run of the same
windows, and latencies are as good as the costs. Absent on purpose: Kafka, embedding, the time of
grouping, and the vectors themselves.
"""
