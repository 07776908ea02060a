"""Tests of `bench.answers`."""
