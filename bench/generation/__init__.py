"""Benchmarks of the generator: whether its answers are right, and what they cost."""
