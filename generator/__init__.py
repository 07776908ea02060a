"""What is the model asked, and what did it cite?

*Invariant:* a query that was taken in ends in exactly one terminal answer, or in none if its
partition was revoked; a server that refuses is waited for. *Invariant:* a citation names a passage
of the prompt, and says who made it: the model by a marker, or Carpool by the words. *Invariant:* a
late answer is `expired`, never `ok`. *Invariant:* an answered query is not generated again. Not
here, on purpose: a tokenizer, control of what a server evicts, and answers that begin before their
search ends.
"""
