"""Benchmarks of the gateway: what it adds to a question, and agents that share windows."""
