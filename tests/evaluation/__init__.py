"""Tests of `carpool.evaluation`."""
