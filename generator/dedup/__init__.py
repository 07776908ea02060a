"""Which queries have an answer? `rag.answers.v1` is read before the first prompt, and followed.

*Invariant:* a record that has its terminal answer in the log gets no second one, whichever service
ended it. *Invariant:* an id with an `ok` answer is not generated again within the horizon, and no
other answer supersedes that one. *Invariant:* of equal prompts one is generated. Absent on purpose:
another store; an answer that the log does not show does not count.
"""
