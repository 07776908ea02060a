"""Tests of `bench.simulator`: the search plane on virtual time."""
