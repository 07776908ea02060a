"""Where are clusters in memory? The arena, and the reads that fill it.

*Invariant:* memory is freed before the read that uses it next starts.
"""
