"""How do we talk to brokers? One seam of clients, and two implementations behind it.

`librdkafka` talks to real brokers, `memory` is a broker in memory for tests; both pass one
conformance suite. *Invariant:* nothing here knows the loop or a service.
"""
