"""Eviction policies that the searcher's is compared with, one a file."""
