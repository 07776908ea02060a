"""Spans of one trace for a query, across all topics and services.

*Invariant:* without a collector, a trace costs one call that does nothing; with one, it never
blocks: spans that cannot be exported in time are dropped. Spans never contain prompts,
questions or answers.
"""
