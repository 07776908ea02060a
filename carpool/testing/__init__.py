"""Test tools, also for users: a real Kafka, LLM stand-ins, poison records, kills.

*Invariant:* no service uses this in production; a stand-in's name appears in its output.
"""
