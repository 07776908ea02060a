"""Which cluster is evicted? One eviction policy a file; each implements `CachePolicy`."""
