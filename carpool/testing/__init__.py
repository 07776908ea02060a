"""Test tools, also for applications: real Kafka, a stand-in for an LLM server, faults, workflows.

*Invariant:* no service uses this in production; a stand-in's name appears in its output.
"""
