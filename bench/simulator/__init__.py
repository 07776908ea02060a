"""The searcher's plans without a disk, to judge what they read.

*Invariant:* no decision is made here: `searcher.plan` decides what is read, evicted and scored, and
when a query is answered. So bytes are those of a real run of the same windows. Absent on purpose:
time, Kafka, embedding, the vectors.
"""
