"""Tests of `bench.core`: what all benchmarks share."""
