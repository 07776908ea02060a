"""Tests of `bench.simulator`, in traces counted by hand."""
