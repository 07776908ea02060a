"""How does Carpool talk to brokers? One set of client protocols with two implementations.

`librdkafka` is for real brokers; a broker in memory stands beside the tests. Both pass one
conformance suite. *Invariant:* nothing here imports the loop or a service.
"""
