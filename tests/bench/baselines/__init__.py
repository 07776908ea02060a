"""Tests of `bench.baselines`: the ways to search that Carpool is compared with."""
