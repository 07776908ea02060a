"""Benchmarks of one part each: grouping, cache policies, the raw disk."""
