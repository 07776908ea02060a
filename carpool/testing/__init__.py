"""Test tools, also for applications: a real Kafka, a stand-in for an LLM server, faults between,
and runs of workflows without services.

*Invariant:* no service uses this in production; a stand-in's name appears in its output.
"""
