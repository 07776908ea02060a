"""Tests of `bench.services`: questions through the services."""
