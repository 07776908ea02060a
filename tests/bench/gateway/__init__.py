"""Tests of `bench.gateway`."""
