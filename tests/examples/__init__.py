"""Tests of the programs in `examples`."""
