"""Ways to search that are compared: Carpool, published algorithms, and products.

Query by query runs on the searcher's memory, reads and scan, so that only the algorithm
differs.
"""
