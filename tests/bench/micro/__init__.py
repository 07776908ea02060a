"""Tests of `bench.micro`: benchmarks of single parts."""
