"""Which queries have an answer already? `rag.answers.v1` is the ledger: it is read before the first
prompt, and followed.

*Invariant:* a record that has its terminal answer in the log gets no second one. *Invariant:* an id
with an `ok` answer is not generated again within the horizon. Absent on purpose: a store of its
own; what the log does not show does not count.
"""
