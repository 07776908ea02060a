"""Tests of `bench.generation`: answers, orders, servers, warm-ups, and their simulators."""
