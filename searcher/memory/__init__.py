"""Which clusters are in memory? The slices in the arena, and the reads that fill it.

*Invariant:* memory is freed before the read that uses it next starts.
"""
