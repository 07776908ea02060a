"""The contestants, one module each published algorithm or product; `bench.retrieval.registry` lists
them.
"""
