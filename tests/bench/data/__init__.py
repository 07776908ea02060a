"""Tests of `bench.data`: evaluation data and grown sets."""
