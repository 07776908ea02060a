"""Which cluster is evicted?"""
