"""What travels? Records, topics, headers and the codec: the wire contract, and nothing else.

*Invariant:* nothing here imports another package of Carpool. *Invariant:* records are frozen; a
decoded record has been validated. Absent on purpose: Kafka clients, numpy, any behaviour of a
service.
"""
