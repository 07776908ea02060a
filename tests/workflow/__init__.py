"""Tests of carpool.workflow."""
