"""Benchmarks of one part each: grouping, the raw disk, devices of the hot shard."""
