"""The contestants, one module each published algorithm or product; `bench.search.registry` lists
them.
"""
