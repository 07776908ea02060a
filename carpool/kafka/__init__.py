"""How does Carpool talk to brokers? One set of client protocols with two implementations.

`librdkafka` is for real brokers, `memory` is a broker in memory for tests. Both pass one
conformance suite. *Invariant:* nothing here imports the loop or a service.
"""
