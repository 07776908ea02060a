"""Benchmarks of the hot shard."""
