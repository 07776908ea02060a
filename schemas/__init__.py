"""What travels? Records, topics, headers and the codec: the wire contract.

*Invariant:* nothing here imports another package of Carpool. *Invariant:* records are frozen, and
validated when decoded. Absent on purpose: Kafka clients, NumPy, any behaviour of a service.
"""
