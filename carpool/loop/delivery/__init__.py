"""Commits finished work: `at_least_once`, or `exactly_once` in transactions (ADR 0007)."""
