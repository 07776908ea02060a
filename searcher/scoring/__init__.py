"""How are clusters scored? The scan over pages in memory, its threads, and the top-k of every
query.
"""
