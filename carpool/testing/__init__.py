"""What do tests stand on? A real Kafka, an LLM stand-in, an embedding model without weights.
Importable by users' tests.

*Invariant:* nothing here is used by a service in production; a stand-in's name appears in what it
produces.
"""
