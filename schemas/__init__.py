"""What travels? Records, topics, headers and the codec: the wire contract.

<<<<<<< HEAD
*Invariant:* nothing here imports another package of Carpool. *Invariant:* records are frozen, and
validated when decoded. Absent on purpose: Kafka clients, NumPy, any behaviour of a service.
=======
*Invariant:* nothing here imports another package of Carpool. *Invariant:* records are frozen; a
decoded record has been validated. Not here, on purpose: Kafka clients, NumPy, any behaviour of a
service.
>>>>>>> 5698ae8 (docs: write the prose of the schemas in plain words)
"""
