"""Tests of `carpool.loop`: the loop, its stages, deliveries, priorities and traces."""
