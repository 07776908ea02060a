"""How do records come in and results go out? Brokers, delivery, the loop, dead letters.

*Invariant:* stages never see Kafka; only `delivery` knows how work commits. *Invariant:* what a
unit owes is either committed with its outputs or not at all. *Invariant:* every queue is bounded by
credit.
"""
