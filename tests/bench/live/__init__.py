"""Tests of `bench.live`."""
