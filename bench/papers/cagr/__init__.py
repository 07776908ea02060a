"""CaGR-RAG (2025): its groups, cache and prefetch, counted in hits and bytes.

Absent on purpose: its latencies. They were measured once (docs/figures), with code that is in git.
"""
