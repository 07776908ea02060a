"""Tests of `bench.reliability`: failures, rebalances and load."""
