"""Tests of `bench.gpu`, on the device that every machine has."""
