"""How do records become finished work? The loop, the stage seam, work in flight, retries, and how
results commit.
"""
