"""Which prompt next; what is the model asked, and what did it cite?

*Invariant:* a query that was taken in ends in exactly one terminal answer, or in none if its topic
partition was revoked: a server that refuses is waited for. *Invariant:* citations are numbers that
the model wrote, limited to the passages it was given; none is ever added. *Invariant:* a late
answer is `expired`, never `ok`. *Invariant:* what was answered is not generated again. Absent on
purpose: another order than arrival, and speculation on drafts.
"""
